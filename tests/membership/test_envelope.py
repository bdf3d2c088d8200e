"""Round a message: what is not ours is not read, what is of another version or run is told apart from it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.membership.envelope import LARGEST_REPORT, PROTOCOL, MessageEnvelope, ProtocolMismatch, UnreadableMessage
from shoal.membership.protocol import (
    Heartbeat,
    InstallView,
    JoinRequest,
    LeaseRenewal,
    LeaveRequest,
    MemberInfo,
    ProcessExited,
    ProposeAck,
    ProposeView,
    ProtocolMessage,
    SuspectMember,
)
from shoal.membership.view import MOST_MEMBERS, MembershipView

HERE = MessageEnvelope("run-a")
REPORTS: list[ProtocolMessage] = [
    JoinRequest(member="a", info=MemberInfo("tcp://10.0.0.1:7", "k" * 40, "b")),
    SuspectMember(member="a", of="b", closed=True),
    Heartbeat(
        member="a", generation=1, promised=2, applied=3, step=4, period=0.5, idle=0.1, doing="computing", sent=-7.5
    ),
    ProposeAck(member="a", generation=2, applied=3, formed=1, blank=True),
    LeaveRequest(member="a"),
    ProcessExited(member="a", reason="SIGKILL"),
]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: type(report).__name__)
def test_a_report_comes_back(report: ProtocolMessage) -> None:
    assert HERE.report(HERE.seal(report)) == report
    with pytest.raises(UnreadableMessage):
        HERE.order(HERE.seal(report))


def test_a_view_of_the_most_members_fits() -> None:
    names = tuple(f"{k:064d}" for k in range(MOST_MEMBERS))
    install = InstallView(view=MembershipView(1, names), through=0, fresh=names)
    assert HERE.order(HERE.seal(install)) == install
    with pytest.raises(UnreadableMessage):
        HERE.order(HERE.seal(ProposeView(view=MembershipView(1, (*names, "x")))))


@pytest.mark.parametrize(
    "bad",
    [
        JoinRequest(member="../a"),
        JoinRequest(member="a\n"),
        JoinRequest(member="a", info=MemberInfo(host="\x1b[2J")),
        JoinRequest(member="a", info=MemberInfo("ipc:///tmp/x")),
        JoinRequest(member="a", info=MemberInfo("tcp://a:1", "short")),
        JoinRequest(member="a", info=MemberInfo(host="h" * 241)),
        LeaveRequest(member=""),
        ProposeAck(member="a", generation=-1, applied=0),
        ProposeAck(member="a", generation=2**60, applied=0),
        Heartbeat(member="a", generation=0, promised=0, applied=0, period=float("nan")),
        LeaseRenewal(sent=0.0, seconds=1.0),
    ],
    ids=repr,
)
def test_what_is_out_of_bounds_is_not_read(bad: ProtocolMessage) -> None:
    with pytest.raises(UnreadableMessage):
        HERE.report(HERE.seal(bad))


def test_a_field_nobody_knows_is_not_read() -> None:
    head, _ = HERE.seal(LeaveRequest(member="a"))
    with pytest.raises(UnreadableMessage):
        HERE.report([head, msgspec.msgpack.encode({"type": "Leave", "member": "a", "more": 1})])


def test_another_protocol_and_another_run_are_named() -> None:
    both = f"this side speaks protocol {PROTOCOL}, the other 7; use the same Shoal on both"
    with pytest.raises(ProtocolMismatch, match=both):
        HERE.report(MessageEnvelope("run-a", 7).seal(LeaveRequest(member="a")))
    with pytest.raises(ProtocolMismatch, match="this side is of run run-a, the other of run-b"):
        HERE.report(MessageEnvelope("run-b").seal(LeaveRequest(member="a")))


@given(st.lists(st.binary(max_size=LARGEST_REPORT + 2), max_size=4))
def test_noise_is_not_read(frames: list[bytes]) -> None:
    with pytest.raises(UnreadableMessage):
        HERE.report(frames)
    with pytest.raises(UnreadableMessage):
        HERE.report([HERE.seal(LeaveRequest(member="a"))[0], b"".join(frames)])
