"""P1 and P2 under parameter servers: a worker is killed and replaced; a server is killed and the run begins again."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest
from forked import command, soon
from scripts import assert_exactly_once, script
from test_killed_or_frozen_worker import WAIT, disturbed
from test_killed_worker_in_local_rounds import KILLED, replaced

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize(("slot", "plan"), [pytest.param(1, "server(shards=2)", id="every step")])
def test_p1_killed_under_servers_and_replaced(tmp_path: Path, slot: int, plan: str) -> None:
    """The others go on at once, another takes its place, and every sample counts once."""
    each = KILLED.replace("SLOT", str(slot))
    err = disturbed(tmp_path, partial(replaced, tmp_path, slot), "--plan", plan, each=each)
    assert f"worker {slot} was lost (SIGKILL)" in err


def server_pid(temporary: Path) -> int:
    (found,) = temporary.glob("shoal-servers-*/0.pid")
    return int(found.read_text())


def test_p2_a_killed_server_takes_the_run_back_to_its_checkpoint(tmp_path: Path, temporary: Path) -> None:
    script(tmp_path, each="time.sleep(0.05)")
    words = ("--workers", "2", "--plan", "server", "--name", "one", "--checkpoint", "2steps")
    running = command(tmp_path, "run", *words, "script.py")
    assert soon(WAIT, lambda: list(tmp_path.glob("runs/one/checkpoints/step-*"))), "no checkpoint was taken"
    os.kill(server_pid(temporary), signal.SIGKILL)
    done = running.wait(WAIT)
    assert done.code == 0, done.err
    assert (
        "shoal: server 0 died of SIGKILL (signal 9); the run begins again at its last checkpoint (1 of 3)" in done.err
    )
    assert_exactly_once(tmp_path, "one", 96, 2)
