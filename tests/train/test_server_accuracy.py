"""Paces of parameter servers on MNIST with four workers, at equal samples: within a point of synchronous training."""

from pathlib import Path

import pytest
from equal_samples import DATA, HERE, accuracy
from forked import command

from shoal.watch.record import RunRecord
from shoal.watch.worker import read_workers

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


@pytest.mark.parametrize("pace", ["stale(0)", "stale(3)", "async(samples=leased)"], ids=["sync", "bounded", "async"])
def test_a_significance_filter_saves_four_bytes_of_five_and_costs_less_than_a_point(tmp_path: Path, pace: str) -> None:
    """Row 2: one option of the command chooses the pace. Bytes of both directions, meetings included."""
    up = down = plain = 0
    found = []
    for seed in range(SEEDS):
        words = [
            "run",
            "-w",
            str(WORKERS),
            "--name",
            f"run{seed}",
            "--json",
            "--checkpoint",
            "off",
            "--seed",
            str(seed),
        ]
        script = [str(HERE / "mnist_sgd.py"), str(DATA / "mnist"), str(SAMPLES)]
        done = command(tmp_path, *words, "--plan", f"server, {pace}, significant(0.05)", *script).wait(500)
        assert done.code == 0, done.err
        found.append(float(done.json["metrics"]["accuracy"]))
        workers = read_workers(RunRecord.open(tmp_path / "runs" / f"run{seed}"))
        told = [worker.servers for worker in workers if worker.servers is not None]
        assert len(told) == WORKERS
        up, down = up + sum(each.up for each in told), down + sum(each.down for each in told)
        plain += sum(each.plain_up + each.plain_down for each in told)
    assert 5 * (up + down) <= plain
    assert sum(found) / SEEDS >= accuracy(f"server, {pace}", WORKERS, SAMPLES, seeds=SEEDS) - POINT
