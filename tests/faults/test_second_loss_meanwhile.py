"""P5 somebody dies while a newcomer is given the state; P13 the coordinator dies at every kind of entry it writes."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from forked import Forked, soon
from scripts import given_up
from strangers import refusal, stranger
from test_killed_or_frozen_worker import WAIT, disturbed, doing, kill, pid

from shoal.core.clock import Deadline
from shoal.groups.state_transfer import MemoryStateTransfer
from shoal.launch.live_runs import live
from shoal.membership import wal
from shoal.membership.credentials import ClientCredentials, ServerCredentials
from shoal.membership.envelope import ASKING, MessageEnvelope
from shoal.membership.failure_detector import MembershipRules
from shoal.membership.grants import JoinPolicy, SlotGranted
from shoal.membership.handle import CoordinatorHandle
from shoal.membership.invitation import RunBrief, RunQuery
from shoal.membership.key_register import KeyBound
from shoal.membership.protocol import JoinRequest, MemberInfo
from shoal.membership.server import CoordinatorSetup
from shoal.transport.keys import CurveKeyPair

pytestmark = pytest.mark.timeout(300)


def once(folder: Path, name: str) -> bool:
    """True for the first process that asks."""
    try:
        (folder / f"once-{name}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_coordinator() -> None:
    (notice,) = live()
    assert notice.coordinator is not None
    os.kill(notice.coordinator.pid, signal.SIGKILL)


def donor_dies_before(folder: Path) -> None:
    give = MemoryStateTransfer.give

    def killed(*args: object) -> None:
        if once(folder, "donor"):
            die()
        give(*args)  # type: ignore[arg-type]

    MemoryStateTransfer.give = killed  # type: ignore[method-assign, assignment]


def donor_dies_after(folder: Path) -> None:
    give = MemoryStateTransfer.give

    def killed(*args: object) -> None:
        give(*args)  # type: ignore[arg-type]
        if once(folder, "donor"):
            die()

    MemoryStateTransfer.give = killed  # type: ignore[method-assign, assignment]


def joiner_dies(folder: Path) -> None:
    receive = MemoryStateTransfer.take

    def killed(*args: object) -> object:
        found = receive(*args)  # type: ignore[arg-type]
        if found is not None and once(folder, "joiner"):
            die()
        return found

    MemoryStateTransfer.take = killed  # type: ignore[method-assign, assignment]


def coordinator_dies(folder: Path) -> None:
    give = MemoryStateTransfer.give

    def killed(*args: object) -> None:
        if once(folder, "coordinator"):
            kill_coordinator()
        give(*args)  # type: ignore[arg-type]

    MemoryStateTransfer.give = killed  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize(
    "death",
    [
        donor_dies_before,
        pytest.param(joiner_dies, marks=pytest.mark.soak),
        pytest.param(coordinator_dies, marks=pytest.mark.soak),
        pytest.param(donor_dies_after, marks=pytest.mark.soak),
    ],
    ids=lambda death: death.__name__.replace("_", " "),
)
def test_p5_a_second_loss_while_the_first_is_made_good(tmp_path: Path, death: Callable[[Path], None]) -> None:
    def act(_running: Forked) -> None:
        os.kill(pid(tmp_path, 2), signal.SIGKILL)
        assert soon(WAIT, lambda: list(tmp_path.glob("once-*"))), "the second fault never came"
        assert soon(WAIT, whole), doing()

    def whole() -> bool:
        members = doing()
        assert members, "the run has ended"
        starts = 4 if death is coordinator_dies else 5
        return sum(member.starts for member in members) == starts and all(m.rank is not None for m in members)

    err = disturbed(tmp_path, act, inject=lambda: death(tmp_path))
    assert err.count("was lost (SIGKILL)") == (1 if death is coordinator_dies else 2), err
    assert "quarantined" not in err


def deadly_log(folder: Path) -> None:
    """The coordinator dies before, inside and right after the first entries of each kind."""
    append = wal.CoordinatorLog.append

    def killed(self: wal.CoordinatorLog, entry: wal.Written) -> None:
        kind = type(entry).__name__
        if once(folder, f"before-{kind}"):
            die()
        if once(folder, f"torn-{kind}"):
            os.write(self._file, b"\x20\0\0\0\1\2\3")
            die()
        append(self, entry)
        if once(folder, f"after-{kind}"):
            die()

    wal.CoordinatorLog.append = killed  # type: ignore[method-assign]


VIEWS, KEYS = {"ViewProposed", "ViewInstalled", "MemberLost"}, {"SlotGranted", "KeyBound"}
"""Kinds of entries: those of every run, and those of runs that let other machines in."""


def deaths(folder: Path) -> set[str]:
    return {path.name.removeprefix("once-") for path in folder.glob("once-*")}


def at_each(kinds: set[str]) -> set[str]:
    return {f"{place}-{kind}" for place in ("before", "torn", "after") for kind in kinds}


def test_p13_the_coordinator_dies_at_every_kind_of_entry(tmp_path: Path) -> None:
    err = disturbed(tmp_path, lambda _: kill(tmp_path, 1), inject=lambda: deadly_log(tmp_path))
    assert deaths(tmp_path) == at_each(VIEWS)
    assert err.count("was lost") == 1, err
    assert given_up(tmp_path) == ["w1.1000000"]


def test_p13_the_entries_of_the_log_are_of_these_kinds() -> None:
    """A new kind must die in one of the tests here, too."""
    assert {kind.__name__ for kind in get_args(wal.Written)} == VIEWS | KEYS


def asked_until_answered(handle: CoordinatorHandle, key: ClientCredentials, *frames: bytes) -> list[bytes]:
    """As a launcher and a machine do it: who was killed is started again, and what was not answered is said again."""
    for _ in range(4):
        if not handle.alive():
            handle.restart(Deadline.after(WAIT))
        with stranger(handle.address, key) as machine:
            machine.say(*frames)
            while handle.alive():
                if answer := machine.answer(0.05):
                    return answer
    raise AssertionError("the coordinator dies again and again")


def test_p13_a_slot_is_promised_and_a_key_bound_once_though_the_coordinator_dies(tmp_path: Path) -> None:
    """A machine that may bring one worker asks for its slot and joins, through three deaths at each entry."""
    ours, theirs = CurveKeyPair.new(), CurveKeyPair.new()
    lock, versions = ServerCredentials(ours, {theirs.public: 1}), {"shoal": "1", "torch": "2"}
    brief = RunBrief(run="one", name="s.py", script=b"pass", arguments=(), plan="none", seed=0, checkpoint="auto")
    welcome = JoinPolicy(brief, versions, {theirs.public: 1}, first=2)
    setup = CoordinatorSetup(
        "one", "tcp://127.0.0.1:*", tmp_path / "log", MembershipRules(silence=WAIT), lock, welcome=welcome
    )
    handle, key = CoordinatorHandle(setup, lambda: deadly_log(tmp_path)), ClientCredentials(theirs, ours.public)
    for kind in VIEWS:
        for place in at_each({kind}):
            once(tmp_path, place)  # views are those of the test above
    handle.start(Deadline.after(WAIT))
    try:
        ask = ASKING.seal(RunQuery(workers=1, token="0" * 32, versions=versions))
        answer = ASKING.answer(asked_until_answered(handle, key, *ask))
        assert isinstance(answer, RunBrief)
        (member,) = answer.members
        again = ASKING.answer(asked_until_answered(handle, key, *ask))
        assert again == answer, "the same question, the same answer"
        hello = MessageEnvelope("one").seal(
            JoinRequest(member=member, info=MemberInfo("tcp://127.0.0.1:1", remote=True))
        )
        other = MessageEnvelope("one").seal(
            JoinRequest(member="w9.9", info=MemberInfo("tcp://127.0.0.1:1", remote=True))
        )
        while "after-KeyBound" not in deaths(tmp_path):
            handle.alive() or handle.restart(Deadline.after(WAIT))
            with stranger(handle.address, key) as machine:
                machine.say(*hello)
                assert soon(WAIT, lambda: not handle.alive())
        assert "was not given to this key" in refusal(asked_until_answered(handle, key, *other))
    finally:
        handle.stop(Deadline.after(WAIT))
    assert deaths(tmp_path) == at_each(VIEWS | KEYS)
    entries, _ = wal.read(setup.log)
    assert [(e.member, e.token) for e in entries if isinstance(e, SlotGranted)] == [(member, "0" * 32)]
    assert [(e.member, e.key) for e in entries if isinstance(e, KeyBound)] == [(member, theirs.public.decode())]


def deadly_entry(folder: Path, number: int) -> None:
    """The coordinator dies at the entry of this number, counted over all its lives: before, inside and after it."""
    append = wal.CoordinatorLog.append

    def killed(self: wal.CoordinatorLog, entry: wal.Written) -> None:
        here = len(wal.read(self.path)[0]) == number
        if here and once(folder, "before"):
            die()
        if here and once(folder, "torn"):
            os.write(self._file, b"\x20\0\0\0\1\2\3")
            die()
        append(self, entry)
        if here and once(folder, "after"):
            die()

    wal.CoordinatorLog.append = killed  # type: ignore[method-assign]


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(7))  # of more a run is not sure: the rest is written while it ends
def test_p13_the_coordinator_dies_at_the_nth_entry(tmp_path: Path, number: int) -> None:
    err = disturbed(tmp_path, lambda _: kill(tmp_path, 1), inject=lambda: deadly_entry(tmp_path, number))
    assert len(list(tmp_path.glob("once-*"))) == 3
    assert err.count("was lost") == 1, err
    assert given_up(tmp_path) == ["w1.1000000"]
