"""`shoal switch` to servers and back on real processes: they come and go with the view, whoever is killed beside it."""

import os
import signal
from pathlib import Path

import pytest
from forked import shoal, soon
from test_ps import end, trains
from test_switch_command import (
    KILLED,
    WAIT,
    assert_exactly_once,
    assert_one_after_the_other,
    finish,
    refused,
    start,
    switches,
    write,
)

from shoal.cli.switch import count_switches
from shoal.plan.plan import Plan

pytestmark = pytest.mark.usefixtures("tidy")

SERVER, THREE, STALE, ASYNC, LAST = (
    "server, every(1)",
    "server(shards=3), every(1)",
    "server(shards=2), stale(2, round=8)",
    "server, async(round=40)",
    "allreduce, every(1), fp16",
)


def files(temporary: Path) -> set[str]:
    """Where servers of this run listen for requests."""
    return {each.name for each in temporary.glob("shoal-servers-*/*") if each.is_socket() and not each.suffix}


def server_pid(temporary: Path, name: str) -> int:
    (found,) = temporary.glob(f"shoal-servers-*/{name}.pid")
    return int(found.read_text())


def test_a_script_goes_through_servers_and_back(tmp_path: Path, temporary: Path) -> None:
    """A round of 40 steps is longer than a pass: that plan begins and ends between two passes."""
    plans = [SERVER, THREE, STALE, ASYNC, LAST]
    write(tmp_path, plans, last=LAST)
    finish(start(tmp_path, "--workers", "2"))
    found = [(event.number, event.plan) for event in switches(tmp_path, 0)]
    assert found == list(enumerate(plans, 1))
    assert found == [(event.number, event.plan) for event in switches(tmp_path, 1)]
    assert_one_after_the_other(tmp_path, 5)
    # what `shoal switch` asks of a run that has ended between two of its looks
    assert [count_switches(str(tmp_path / "runs" / "one"), Plan.parse(plan)) for plan in (LAST, "local(9)")] == [1, 0]
    assert_exactly_once(tmp_path)
    assert not list(temporary.glob("shoal-servers-*"))


def test_another_terminal_adds_servers_and_a_newcomer_finds_them(tmp_path: Path, temporary: Path) -> None:
    write(tmp_path, [], last=LAST)
    running = start(tmp_path, "--workers", "2", "--spare", "1")
    trains()
    assert shoal(tmp_path, "switch", "one", THREE).err == f"shoal: one trains by '{THREE}' now\n"
    assert soon(WAIT, lambda: files(temporary) == {"1-0", "1-1", "1-2"})
    assert shoal(tmp_path, "switch", "one", SERVER).code == 0
    assert soon(WAIT, lambda: files(temporary) == {"2-0"})  # those of the plan before have ended
    assert "nobody has opened" not in shoal(tmp_path, "show", "one").out
    assert shoal(tmp_path, "scale", "one", "+1").code == 0
    assert shoal(tmp_path, "switch", "one", LAST).code == 0
    assert soon(WAIT, lambda: files(temporary) == set())
    finish(running)
    assert switches(tmp_path, 2)[-1].plan == LAST
    assert_exactly_once(tmp_path)


@pytest.mark.parametrize("steps", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_a_worker_that_is_killed_beside_a_switch_of_servers_leaves_one_plan_on_all(tmp_path: Path, steps: int) -> None:
    killed = KILLED.replace("BEFORE", repr(THREE)).replace("STEPS", str(steps)).strip()
    write(tmp_path, [THREE, LAST], last=LAST, each=killed)
    finish(start(tmp_path, "--workers", "3"))
    assert (tmp_path / "killed").exists()
    assert [event.plan for event in switches(tmp_path, 0)] == [THREE, LAST]
    assert_exactly_once(tmp_path)


KILL_SERVER = """
        for file in __import__("glob").glob("FOLDER/shoal-servers-*/1-1.pid"):
            text = open(file).read()
            if text and run.rank == 0 and not os.path.exists("killed"):
                os.kill(int(text), 9)
                open("killed", "w").write(str(run.plan))
"""


def test_a_server_that_is_killed_before_its_plan_begins_is_started_again(tmp_path: Path, temporary: Path) -> None:
    """Or, if the plan had begun, the run goes back to its checkpoint, with one plan on all."""
    write(tmp_path, [THREE, LAST], last=LAST, each=KILL_SERVER.replace("FOLDER", str(temporary)).strip())
    outcome = finish(start(tmp_path, "--workers", "2"))
    assert (tmp_path / "killed").exists()
    if (tmp_path / "killed").read_text() == "allreduce, every(1)":
        assert "is tried again" in outcome.err or "begins again" in outcome.err, outcome.err
    assert [event.plan for event in switches(tmp_path, 0)][-1] == LAST
    assert [event.plan for event in switches(tmp_path, 1)][-1] == LAST
    assert_exactly_once(tmp_path)


def test_a_server_that_dies_later_takes_the_run_back_to_its_checkpoint(tmp_path: Path, temporary: Path) -> None:
    write(tmp_path, [], last=LAST)
    running = start(tmp_path, "--workers", "2", "--checkpoint", "20steps")
    trains()
    assert shoal(tmp_path, "switch", "one", THREE).code == 0
    os.kill(server_pid(temporary, "1-2"), signal.SIGKILL)
    assert soon(WAIT, lambda: "begins again" in running.err.read_text())
    trains()
    assert shoal(tmp_path, "switch", "one", LAST).code == 0
    outcome = finish(running)
    assert "server 2 died of SIGKILL" in outcome.err
    assert_exactly_once(tmp_path)


def test_what_servers_cannot_do_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, [], last="none")
    running = start(tmp_path, "--workers", "2")
    trains()
    assert "a deadline needs one server" in refused(capsys, "one", "server(auto), deadline(0.1)")
    assert "shards=65" in refused(capsys, "one", "server(shards=65)")
    end(running)
