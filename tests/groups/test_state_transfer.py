"""The state of a run goes to newcomers of the same host through memory: whole or not at all, and then it is freed."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.groups.state_transfer import MemoryStateTransfer
from shoal.hosts.status_board import StatusBoard, WorkerState
from shoal.membership.view import MembershipView

DONOR, NEWCOMER = "w0.1", "w1.2"
VIEW = MembershipView(7, (DONOR, NEWCOMER))


@pytest.fixture
def here() -> StatusBoard:
    """The board of a donor, which is this process, and of a newcomer that has just started."""
    both = StatusBoard.private()
    both.enter(0)
    both.enter(1)
    return both


@pytest.fixture
def donor(here: StatusBoard) -> Iterator[MemoryStateTransfer]:
    one = MemoryStateTransfer(here)
    yield one
    one.close()


@pytest.fixture
def newcomer(here: StatusBoard) -> MemoryStateTransfer:
    return MemoryStateTransfer(here)


def held() -> list[str]:
    """What this process has open of any state."""
    links = (os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink())
    return [link for link in links if "shoal-state" in link]


def test_a_newcomer_takes_what_the_donor_gave_in_its_view(
    donor: MemoryStateTransfer, newcomer: MemoryStateTransfer
) -> None:
    assert newcomer.take(VIEW, DONOR) is None
    donor.give(VIEW, [NEWCOMER], b"state" * 1000)
    assert newcomer.take(MembershipView(8, VIEW.members), DONOR) is None
    assert newcomer.take(VIEW, DONOR) == b"state" * 1000


def test_it_is_kept_until_all_newcomers_train(
    here: StatusBoard, donor: MemoryStateTransfer, newcomer: MemoryStateTransfer
) -> None:
    donor.give(VIEW, [NEWCOMER], b"state")
    donor.release()
    assert newcomer.take(VIEW, DONOR) == b"state"
    here.note(1, WorkerState.loading)
    donor.release()
    assert newcomer.take(VIEW, DONOR) is None
    assert held() == []


def test_half_of_it_is_nothing(
    donor: MemoryStateTransfer, newcomer: MemoryStateTransfer, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[bytes | None] = []
    monkeypatch.setattr("shoal.groups.state_transfer.DISK.write", lambda *_: found.append(newcomer.take(VIEW, DONOR)))
    donor.give(VIEW, [NEWCOMER], b"state")
    assert found == [None]


def test_a_donor_that_is_gone_gave_nothing(here: StatusBoard, newcomer: MemoryStateTransfer) -> None:
    pid = os.fork()
    if pid == 0:
        here.enter(0)
        os._exit(0)
    os.waitpid(pid, 0)
    assert newcomer.take(VIEW, DONOR) is None
