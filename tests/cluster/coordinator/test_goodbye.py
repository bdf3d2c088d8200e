"""The end of a run is told to those that are still there; the end of a coordinator alone is not."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from toy import until

from shoal.cluster.coordinator.channel import Stop
from shoal.cluster.coordinator.handle import Handle
from shoal.cluster.coordinator.process import Setup
from shoal.cluster.membership.agent import Agent
from shoal.cluster.membership.rules import Rules
from shoal.core.clock import Deadline
from shoal.core.errors import DeadlineError, RunEnded

WAIT = 30.0


@contextlib.contextmanager
def members(folder: Path, *names: str) -> Iterator[tuple[Handle, dict[str, Agent]]]:
    """The first of them is a member that trains; others want in."""
    place = folder / "c"
    place.mkdir(mode=0o700)
    handle = Handle(Setup("one", f"ipc://{place}/s", folder / "log", Rules(silence=WAIT)))
    handle.start(Deadline.after(WAIT))
    agents = {name: Agent(name, handle.address, "one") for name in names}
    try:
        agents[names[0]].start()
        agents[names[0]].wait_settled(Deadline.after(WAIT))
        agents[names[0]].filled()
        for name in names[1:]:
            agents[name].start()
            until(lambda name=name: agents[name]._heard != agents[name]._began)
        yield handle, agents
    finally:
        for agent in agents.values():
            agent.close(leave=False)
        handle.stop(Deadline.after(10.0))


def told(agent: Agent) -> RunEnded | None:
    """What it heard of the end of the run, if anything."""
    try:
        agent.begin(0, Deadline.after(0.05))
    except RunEnded as error:
        return error
    except DeadlineError:
        return None
    return None


@pytest.mark.parametrize("well", [True, False])
def test_whoever_waits_is_told_and_whoever_trains_may_finish(tmp_path: Path, well: bool) -> None:
    with members(tmp_path, "a", "b") as (handle, agents):
        handle.stop(Deadline.after(WAIT), Stop(well=well, reason="because"))
        until(lambda: told(agents["b"]))
        late = told(agents["b"])
        assert late is not None
        assert late.well == well
        assert "the run has ended: because" in str(late)
        if not well:
            until(lambda: told(agents["a"]))
        else:
            assert told(agents["a"]) is None


def test_a_coordinator_that_is_ended_alone_says_nothing(tmp_path: Path) -> None:
    with members(tmp_path, "a", "b") as (handle, agents):
        os.kill(handle.pid, signal.SIGTERM)
        until(lambda: not handle.alive())
        handle.restart(Deadline.after(WAIT))
        until(lambda: agents["b"].unheard < 0.2)
        assert told(agents["a"]) is told(agents["b"]) is None
