"""Round a message: what is not ours is not read, what is of another version or run is told apart from it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster.membership.envelope import LARGEST_REPORT, PROTOCOL, Envelope, Mismatch, Unreadable
from shoal.cluster.membership.messages import (
    Beat,
    Doubt,
    Gone,
    Hello,
    Install,
    Lease,
    Leave,
    Message,
    Plate,
    Propose,
    Standing,
)
from shoal.cluster.membership.view import MOST_MEMBERS, View

HERE = Envelope("run-a")
REPORTS: list[Message] = [
    Hello(member="a", plate=Plate("tcp://10.0.0.1:7", "k" * 40, "b")),
    Doubt(member="a", of="b", closed=True),
    Beat(member="a", epoch=1, promised=2, applied=3, step=4, period=0.5, idle=0.1, doing="computing", sent=-7.5),
    Standing(member="a", epoch=2, applied=3, formed=1, blank=True),
    Leave(member="a"),
    Gone(member="a", reason="SIGKILL"),
]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: type(report).__name__)
def test_a_report_comes_back(report: Message) -> None:
    assert HERE.report(HERE.seal(report)) == report
    with pytest.raises(Unreadable):
        HERE.order(HERE.seal(report))


def test_a_view_of_the_most_members_fits() -> None:
    names = tuple(f"{k:064d}" for k in range(MOST_MEMBERS))
    install = Install(view=View(1, names), through=0, fresh=names)
    assert HERE.order(HERE.seal(install)) == install
    with pytest.raises(Unreadable):
        HERE.order(HERE.seal(Propose(view=View(1, (*names, "x")))))


@pytest.mark.parametrize(
    "bad",
    [
        Hello(member="../a"),
        Hello(member="a\n"),
        Hello(member="a", plate=Plate(host="\x1b[2J")),
        Hello(member="a", plate=Plate("ipc:///tmp/x")),
        Hello(member="a", plate=Plate("tcp://a:1", "short")),
        Hello(member="a", plate=Plate(host="h" * 241)),
        Leave(member=""),
        Standing(member="a", epoch=-1, applied=0),
        Standing(member="a", epoch=2**60, applied=0),
        Beat(member="a", epoch=0, promised=0, applied=0, period=float("nan")),
        Lease(sent=0.0, seconds=1.0),
    ],
    ids=repr,
)
def test_what_is_out_of_bounds_is_not_read(bad: Message) -> None:
    with pytest.raises(Unreadable):
        HERE.report(HERE.seal(bad))


def test_a_field_nobody_knows_is_not_read() -> None:
    head, _ = HERE.seal(Leave(member="a"))
    with pytest.raises(Unreadable):
        HERE.report([head, msgspec.msgpack.encode({"type": "Leave", "member": "a", "more": 1})])


def test_another_protocol_and_another_run_are_named() -> None:
    both = f"this side speaks protocol {PROTOCOL}, the other 7; use the same Shoal on both"
    with pytest.raises(Mismatch, match=both):
        HERE.report(Envelope("run-a", 7).seal(Leave(member="a")))
    with pytest.raises(Mismatch, match="this side is of run run-a, the other of run-b"):
        HERE.report(Envelope("run-b").seal(Leave(member="a")))


@given(st.lists(st.binary(max_size=LARGEST_REPORT + 2), max_size=4))
def test_noise_is_not_read(frames: list[bytes]) -> None:
    with pytest.raises(Unreadable):
        HERE.report(frames)
    with pytest.raises(Unreadable):
        HERE.report([HERE.seal(Leave(member="a"))[0], b"".join(frames)])
