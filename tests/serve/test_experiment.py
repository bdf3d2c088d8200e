"""Statistics of A/B: they agree with values known otherwise, and see no difference where there is none."""

from random import Random

import numpy as np
import pytest

from shoal.serve.experiment import SampleSums, compare_means, compare_rates, compare_versions, wilson_interval
from shoal.serve.metrics import VersionMetrics


def sums(values: list[float]) -> SampleSums:
    return SampleSums(len(values), sum(values), sum(each * each for each in values))


def test_a_mean_and_its_error_are_those_of_numpy() -> None:
    values = [0.1, 0.4, 0.2, 0.9]
    found = sums(values)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.error == pytest.approx(np.var(values, ddof=1) / 4)


def test_known_values() -> None:
    assert wilson_interval(0, 100) == pytest.approx((0.0, 0.037), abs=1e-3)  # textbook value
    assert wilson_interval(50, 100) == pytest.approx((0.404, 0.596), abs=1e-3)
    assert compare_rates(10, 100, 10, 100) == 1.0
    assert compare_rates(15, 1000, 40, 1000) == pytest.approx(0.00068, abs=1e-4)  # z = 3.40
    assert compare_rates(0, 0, 1, 5) == compare_means(sums([]), sums([1.0])) == 1.0


def test_equal_versions_seem_different_as_often_as_the_level_says() -> None:
    chance, wrong = Random(0), 0
    for _ in range(1000):
        a, b = ([chance.gauss(1.0, 0.3) for _ in range(60)] for _ in range(2))
        wrong += compare_means(sums(a), sums(b)) < 0.05
    assert 25 <= wrong <= 80


def test_a_slower_version_is_seen() -> None:
    found = {1: VersionMetrics(), 2: VersionMetrics()}
    chance = Random(1)
    for number, mean in ((1, 0.01), (2, 0.012)):
        for _ in range(500):
            found[number].request_done(200, chance.gauss(mean, 0.002))
            found[number].rewarded(float(chance.random() < 0.8), 0.0)
    told = compare_versions(found)
    assert told["p_values"]["latency"] < 1e-6
    assert told["p_values"]["reward"] > 0.01
    assert told["p_values"]["error_rate"] == 1.0
    assert told["versions"]["2"]["latency_interval"][0] > told["versions"]["1"]["latency_interval"][1]
