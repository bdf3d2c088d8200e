"""Paces of parameter servers on MNIST with four workers, at equal samples: within a point of synchronous training."""

import pytest
from equal_samples import accuracy

pytestmark = [pytest.mark.soak("mnist"), pytest.mark.timeout(1100)]
SAMPLES, WORKERS, POINT, SEEDS = 8000, 4, 0.01, 3


@pytest.mark.parametrize(
    "plan",
    [
        "ssp",
        "essp",
        "dynssp",
        "server, async(samples=leased)",
        "server, async(rule=adagrad, rate=0.01, samples=leased)",
    ],
)
def test_staleness_costs_less_than_a_point(plan: str) -> None:
    synchronous = accuracy("bsp", WORKERS, SAMPLES, seeds=SEEDS)
    assert accuracy(plan, WORKERS, SAMPLES, seeds=SEEDS) >= synchronous - POINT
