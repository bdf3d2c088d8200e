"""The end of a run is told to those that are still there; the end of a coordinator alone is not."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from toy import until

from shoal.core.clock import Deadline
from shoal.core.errors import DeadlineError, RunEnded
from shoal.launch.join_request import ask, question, versions
from shoal.membership.agent import MembershipAgent
from shoal.membership.credentials import ClientCredentials, ServerCredentials
from shoal.membership.failure_detector import MembershipRules
from shoal.membership.grants import JoinPolicy
from shoal.membership.handle import CoordinatorHandle
from shoal.membership.invitation import RunBrief
from shoal.membership.launcher_channel import StopCoordinator
from shoal.membership.protocol import MemberInfo
from shoal.membership.server import CoordinatorSetup
from shoal.transport.keys import CurveKeyPair

WAIT = 30.0
OFFICE, OWN = CurveKeyPair.new(), CurveKeyPair.new()
BRIEF = RunBrief(run="one", name="s.py", script=b"", arguments=(), plan="", seed=0, checkpoint="off")


@contextlib.contextmanager
def members(folder: Path) -> Iterator[tuple[CoordinatorHandle, MembershipAgent, MembershipAgent]]:
    """A member that trains, and a guest that wants in."""
    guests = {OFFICE.public: 1}
    welcome = JoinPolicy(BRIEF, versions(), guests, first=1)
    lock = ServerCredentials(OFFICE, {OWN.public: 1, **guests})
    handle = CoordinatorHandle(
        CoordinatorSetup(
            "one", "tcp://127.0.0.1:*", folder / "log", MembershipRules(silence=WAIT), lock, welcome=welcome
        )
    )
    handle.start(Deadline.after(WAIT))
    key = ClientCredentials(OFFICE, OFFICE.public)
    (name,) = ask(handle.address, key, question(1), WAIT).members
    member, guest = (
        MembershipAgent("w0.1000000", handle.address, "one", key=ClientCredentials(OWN, OFFICE.public)),
        MembershipAgent(name, handle.address, "one", key=key),
    )
    guest.info = MemberInfo("tcp://127.0.0.1:7000", "x" * 40, remote=True)
    try:
        member.start()
        member.wait_settled(Deadline.after(WAIT))
        member.filled()
        guest.start()
        until(lambda: guest._loop._heard != guest._loop._began)
        yield handle, member, guest
    finally:
        for agent in (member, guest):
            agent.close(leave=False)
        handle.stop(Deadline.after(10.0))


def told(agent: MembershipAgent) -> RunEnded | None:
    """What it heard of the end of the run, if anything."""
    with contextlib.suppress(DeadlineError):
        try:
            agent.begin(0, Deadline.after(0.05))
        except RunEnded as error:
            return error
    return None


@pytest.mark.parametrize("well", [True, False])
def test_whoever_waits_is_told_and_whoever_trains_may_finish(tmp_path: Path, well: bool) -> None:
    with members(tmp_path) as (handle, member, guest):
        handle.stop(Deadline.after(WAIT), StopCoordinator(well=well, reason="because"))
        until(lambda: told(guest))
        late = told(guest)
        assert late is not None
        assert late.well == well
        assert "the run has ended: because" in str(late)
        if well:
            assert told(member) is None


def test_a_coordinator_that_is_ended_alone_says_nothing(tmp_path: Path) -> None:
    with members(tmp_path) as (handle, member, guest):
        os.kill(handle.pid, signal.SIGTERM)
        until(lambda: not handle.alive())
        heard = guest._loop._heard
        handle.restart(Deadline.after(WAIT))
        until(lambda: guest._loop._heard != heard)
        assert told(member) is told(guest) is None
