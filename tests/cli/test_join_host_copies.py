"""`shared, local(…)` on two machines with two workers each: a worker is killed, then a whole machine."""

import os
import signal
from pathlib import Path

import pytest
from forked import soon
from test_join_machines import WAIT, home, joined, pids, steps, trained

pytestmark = pytest.mark.usefixtures("tidy")


@pytest.mark.parametrize(
    "plan",
    [
        "shared, local(6, samples=leased)",
        pytest.param("h2o", marks=pytest.mark.soak),
        pytest.param("shared, local(6, diloco, samples=leased, end=fastest), int8", marks=pytest.mark.soak),
    ],
)
def test_a_worker_and_then_a_machine_are_killed_and_every_sample_counts_once(tmp_path: Path, plan: str) -> None:
    """The copy of its machine keeps what the worker has trained; what the other machine had not averaged is gone."""
    with home(tmp_path, "--workers", "2", "--plan", plan) as here:
        there, other = tmp_path / "there", tmp_path / "other"
        guest = joined(there, here, "--workers", "2")
        for slot in (2, 3):
            trained(there, "one", slot, guest)
        os.kill(pids(there, "one", 3)[-1], signal.SIGKILL)
        assert soon(WAIT, lambda: len(pids(there, "one", 3)) > 1)
        trained(there, "one", 3, guest)
        os.kill(guest.pid, signal.SIGKILL)
        for slot in (2, 3):
            os.kill(pids(there, "one", slot)[-1], signal.SIGKILL)
        assert guest.wait(WAIT).code != 0
        before = steps(here.folder, "one", 0)
        assert soon(WAIT, lambda: steps(here.folder, "one", 0) > before + 12), here.said
        again = joined(other, here, "--workers", "1")  # a machine that comes later has a copy, too
        assert soon(WAIT, lambda: list(other.glob("runs/one/worker-*.jsonl"))), here.said
        slot = int(next(other.glob("runs/one/worker-*.jsonl")).stem.partition("-")[2])
        trained(other, "one", slot, again)
        here.end(again)
