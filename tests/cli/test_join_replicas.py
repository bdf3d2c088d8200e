"""`server(replicas=2)` between hosts: a server is killed, and its replica answers workers of all machines (P2)."""

import os
import signal
import tempfile
from pathlib import Path

import pytest
from forked import soon
from test_join_machines import WAIT, home, joined, said, slots_of, steps, trained

pytestmark = pytest.mark.usefixtures("tidy")


def kill_server(temporary: Path, place: int, start: int) -> None:
    """The process of this start of a server."""
    (file,) = temporary.glob(f"shoal-servers-*/0-{place}.{start}.pid")
    os.kill(int(file.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("plan", ["server(shards=2, replicas=2)", "server(replicas=2, levels=2), async(round=8)"])
def test_a_replica_takes_over_for_all_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: str) -> None:
    """Workers of both machines train on in the same run, without a checkpoint; all end alike, every sample once."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with home(tmp_path, "--workers", "2", "--plan", plan) as here:
        there = tmp_path / "there"
        guest = joined(there, here, "--workers", "2")
        for slot in (2, 3):
            trained(there, "one", slot, guest)
        kill_server(temporary, 0, 0)
        here.heard("server 0 died of SIGKILL; its replica took over; it goes on without a replica")
        if "shards=2" in plan:  # a replica stands behind all servers
            kill_server(temporary, 3, 1)
            here.heard("the replica of server 1 died of SIGKILL; it goes on without a replica")
        before = {slot: steps(folder, "one", slot) for folder, slot in slots_of(here, there)}
        for folder, slot in slots_of(here, there):
            enough = before[slot] + 20  # more than were on their way
            assert soon(WAIT, lambda f=folder, s=slot, n=enough: steps(f, "one", s) > n), here.said  # type: ignore[misc]
        here.end(guest)
    assert "was lost" not in here.said + said(guest)
    assert "begins again" not in here.said
