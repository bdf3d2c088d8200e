"""`server(levels=2)` on machines with several workers each: one of a machine speaks, and is killed (row 180)."""

import os
import signal
from pathlib import Path

import pytest
from forked import soon
from test_join_machines import WAIT, Home, events, home, joined, pids, said, slots_of, trained

pytestmark = pytest.mark.usefixtures("tidy")


def pushes(folder: Path, slot: int) -> list[tuple[int, int]]:
    """Pushes and their bytes so far, of the workers in a slot, one after the other."""
    told = [event for event in events(folder, "one", slot) if event["event"] == "servers"]
    return [(int(str(event["pushes"])), int(str(event["up"]))) for event in told]


def kill_worker(folder: Path, here: Home, slot: int) -> None:
    """It is started again, and trains."""
    before = pids(folder, "one", slot)
    os.kill(before[-1], signal.SIGKILL)
    assert soon(WAIT, lambda: len(pids(folder, "one", slot)) > len(before)), here.said


def test_one_worker_pushes_for_each_machine_whoever_is_killed(tmp_path: Path) -> None:
    """The next of its machine speaks for it; all end alike, and every sample counts once."""
    plan = "server(shards=2, levels=2), async(round=8)"
    with home(tmp_path, "--workers", "2", "--plan", plan) as here:
        there = tmp_path / "there"
        guest = joined(there, here, "--workers", "2")
        for slot in (2, 3):
            trained(there, "one", slot, guest)
        kill_worker(there, here, 2)
        kill_worker(here.folder, here, 0)
        for folder, slot in slots_of(here, there):
            trained(folder, "one", slot, guest)
        here.end(guest)
    for folder, slots in ((here.folder, (0, 1)), (there, (2, 3))):
        last = [pushes(folder, slot)[-1] for slot in slots]
        assert max(last)[0] > 0, said(guest)
        assert all(up > 0 for count, up in last if count), last
        assert all(up == 0 for count, up in last if not count), last
