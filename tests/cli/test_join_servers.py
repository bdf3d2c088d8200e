"""`shoal run --listen` and `shoal join` under plans with parameter servers."""

import os
import signal
from pathlib import Path

import pytest
from test_join_machines import home, joined, pids, said, trained

pytestmark = pytest.mark.usefixtures("tidy")


@pytest.mark.soak("cli")
@pytest.mark.parametrize(
    "plan",
    [
        "server(shards=2), stale(2, round=8), topk(0.1)",
        "server, async(speculate=0.5, round=8)",
        "server, async(round=8), fp16",
    ],
)
def test_a_machine_that_joins_a_run_with_servers_is_killed_and_costs_nobody_anything(tmp_path: Path, plan: str) -> None:
    """It reaches the server by its invitation; its shares of the samples go to others when it is gone."""
    with home(tmp_path, "--workers", "2", "--plan", plan) as here:
        there = tmp_path / "there"
        guest = joined(there, here, "--workers", "1", "--restarts", "0")
        trained(there, "one", 2, guest)
        os.kill(pids(there, "one", 2)[-1], signal.SIGKILL)
        here.heard("was lost")
        (outcome,) = here.end()
    assert "worker 0 was lost" not in outcome.err + said(here.process)
