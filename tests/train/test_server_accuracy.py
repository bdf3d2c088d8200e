"""Paces of parameter servers on MNIST with four workers, at equal samples: within a point of synchronous training."""

import pytest
from equal_samples import accuracy

pytestmark = [pytest.mark.soak("mnist"), pytest.mark.timeout(1100)]
SAMPLES, WORKERS, POINT, SEEDS = 8000, 4, 0.01, 2
PLANS = {
    "ssp": "server, stale(3)",
    "essp": "server, stale(3, eager=true)",
    "dynssp": "server, stale(3, rates=adaptive)",
    "asynchronous": "server, async(samples=leased)",
    "downpour": "server, async(rule=adagrad, rate=0.005, samples=leased)",
}


@pytest.mark.parametrize("name", PLANS)
def test_staleness_costs_less_than_a_point(name: str) -> None:
    """Rows 31 and 32. Adagrad at the servers with twice the rate loses two points."""
    synchronous = accuracy("bsp", WORKERS, SAMPLES, seeds=SEEDS)
    assert accuracy(PLANS[name], WORKERS, SAMPLES, seeds=SEEDS) >= synchronous - POINT
