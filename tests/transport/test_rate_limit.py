"""A worker that shares its line: what it sends in any stretch of time is the rate's worth and a little at once."""

import random
from pathlib import Path

import pytest
import torch
from meshes import meshes, numbers, total

from shoal.core.clock import now
from shoal.core.errors import UsageError
from shoal.sync.engine.algorithms.direct import DirectSum
from shoal.transport.messages import CHUNK
from shoal.transport.rate_limit import LEAST_AT_ONCE, RateLimit, checked, rate_limit_from_environment


@pytest.mark.parametrize("seed", range(10))
def test_no_stretch_of_time_carries_more_than_its_share(seed: int) -> None:
    chance, rate, clock = random.Random(seed), 1e6, 100.0
    allowance = RateLimit(rate)
    sent: list[tuple[float, int]] = []
    while len(sent) < 300:
        if allowance.wait(clock) <= 0:
            size = chance.randint(1, CHUNK)
            allowance.spent(size, clock)
            sent.append((clock, size))
        else:
            clock += allowance.wait(clock) * chance.choice([0.5, 1.0, 1.0, 5.0])
    for begin in range(0, 300, 10):
        for end in range(begin, 300, 7):
            carried = sum(size for _, size in sent[begin : end + 1])
            assert carried <= rate * (sent[end][0] - sent[begin][0]) + LEAST_AT_ONCE + CHUNK
    assert clock - 100.0 < 1.5 * sum(size for _, size in sent) / rate + 5, "and it is not slower than it must be"


def test_what_cannot_wait_is_counted_too() -> None:
    allowance = RateLimit(1e6)
    allowance.spent(LEAST_AT_ONCE + 500_000, 1.0)
    assert allowance.wait(1.0) == pytest.approx(0.5)
    assert allowance.wait(1.6) == 0.0


def test_a_limited_worker_takes_as_long_as_its_rate_says(tmp_path: Path) -> None:
    """A lower bound alone: nobody can be faster; and the sums are right."""
    tensors, rate = numbers(3, 100_000), 2e6
    with meshes(3, tmp_path) as made:
        made[1].loop.chunk_sender.allowance = RateLimit(rate)
        began = now()
        results = total(made, tensors, DirectSum)
        seconds = now() - began
        assert seconds >= (2 * tensors[1].nbytes - LEAST_AT_ONCE - CHUNK) / rate
        assert all(torch.equal(result, sum(tensors)) for result in results)


def test_links_know_that_they_are_limited(tmp_path: Path) -> None:
    with meshes(3, tmp_path, allowance=RateLimit(3e3)) as made:
        estimate = made[0].link(1).out.estimate
        assert estimate.most == 1500.0
        assert estimate.allowance(60_000, 0.0) >= 4 * 60_000 / 1500, "deadlines follow"


def test_the_environment_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOAL_BANDWIDTH", raising=False)
    assert rate_limit_from_environment() is None
    monkeypatch.setenv("SHOAL_BANDWIDTH", "50mbit")
    allowance = rate_limit_from_environment()
    assert allowance is not None
    assert allowance.rate == 50e6 / 8
    monkeypatch.setenv("SHOAL_BANDWIDTH", "unlimited")
    assert rate_limit_from_environment() is None
    with pytest.raises(UsageError, match=r"--bandwidth \(\$SHOAL_BANDWIDTH\): '50' is not a rate"):
        checked("50")
