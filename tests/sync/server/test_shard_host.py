"""What a server process hosts, without a socket: rounds, members that are lost or come, waits that end."""

import random
from typing import Any

import numpy as np
import pytest

from shoal.sync.server.host import ShardHost
from shoal.sync.server.messages import (
    FailedReply,
    LeaveRoundRequest,
    OpenRequest,
    PullRequest,
    PushReply,
    PushRequest,
    RoundReply,
    RoundRequest,
    ValuesHead,
    WaitReply,
    encode,
)
from shoal.sync.trained import TrainedSamples

A, B, C = "w0.0", "w1.0", "w2.0"


class HostTalk:
    """Members that talk to a host; the replies to each request, in order."""

    def __init__(self, bound: int | None, members: list[str], size: int = 4) -> None:
        self.replies: dict[int, list[tuple[Any, np.ndarray]]] = {}
        self.host = ShardHost(self._note)
        self.size, self._number = size, 0
        for member in members:
            self.ask(member, OpenRequest(0, "add", {}, bound, 1, members), np.zeros(size, np.float32))

    def _note(self, member: str, number: int, reply: Any, arrays: Any) -> None:
        values = np.array(arrays[0], np.float32) if len(arrays) else np.zeros(0, np.float32)
        self.replies.setdefault(number, []).append((reply, values))

    def ask(self, member: str, request: Any, *arrays: np.ndarray) -> list[tuple[Any, np.ndarray]]:
        self._number += 1
        self.host.handle(member, self._number, encode(request), [memoryview(each).cast("B") for each in arrays])
        return self.replies.setdefault(self._number, [])

    def push(self, member: str, clock: int, value: float) -> str:
        ((reply, _),) = self.ask(member, PushRequest(clock), np.full(self.size, value, np.float32))
        assert isinstance(reply, PushReply)
        return reply.outcome


def test_a_waiting_pull_is_told_for_whom_and_answered_when_they_are_there() -> None:
    talk = HostTalk(1, [A, B])
    for clock in range(2):
        assert talk.push(A, clock, 1.0) == "APPLIED"
    waiting = talk.ask(A, PullRequest(2))
    assert [type(reply) for reply, _ in waiting] == [WaitReply]
    assert waiting[0][0].slowest == [B]
    talk.push(B, 0, 10.0)
    assert isinstance(waiting[1][0], ValuesHead)
    assert waiting[1][0].minimum == 1
    assert waiting[1][1].tolist() == [12.0] * 4


def test_nobody_waits_for_a_lost_member_and_what_it_pushed_is_counted() -> None:
    talk = HostTalk(0, [A, B])
    talk.push(B, 0, 10.0)
    talk.push(A, 0, 1.0)
    talk.push(A, 1, 1.0)
    waiting = talk.ask(A, PullRequest(2))
    talk.ask(A, RoundRequest(0, 0, 2, [A]))
    assert isinstance(waiting[-1][0], ValuesHead)
    assert talk.push(B, 1, 10.0) == "LATE"
    ((begun, values),) = talk.ask(A, RoundRequest(0, 1, 2, [A]))
    assert isinstance(begun, RoundReply)
    assert begun.counted == {B: 1}
    assert values.tolist() == [12.0] * 4


def test_all_begin_a_round_with_the_same_values_and_clocks() -> None:
    """A member that is quick may push in the new round before others have asked for its values."""
    talk = HostTalk(None, [A, B])
    talk.push(A, 0, 1.0)
    talk.push(B, 0, 2.0)
    talk.push(B, 1, 4.0)
    ((first, values),) = talk.ask(A, RoundRequest(0, 1, 1, [A, B]))
    assert talk.push(A, first.clock, 100.0) == "APPLIED"
    ((second, same),) = talk.ask(B, RoundRequest(0, 1, 1, [A, B]))
    assert first.clock == second.clock == 2
    assert values.tolist() == same.tolist() == [7.0] * 4


def test_what_a_quarantined_member_pushed_before_is_counted() -> None:
    talk = HostTalk(None, [A, B])
    talk.push(A, 0, 1.0)
    outcomes = [talk.push(B, clock, value) for clock, value in enumerate((2.0, np.nan, np.nan, np.nan, np.nan))]
    assert outcomes == ["APPLIED", "REFUSED", "REFUSED", "QUARANTINED", "QUARANTINED"]
    ((begun, values),) = talk.ask(A, RoundRequest(0, 1, 2, [A]))
    assert begun.counted == {B: 4}
    assert values.tolist() == [3.0] * 4


def test_the_leased_samples_of_a_lost_member_are_told_to_the_others() -> None:
    talk, first, second = (
        HostTalk(None, [A, B]),
        TrainedSamples((0, 0, 0), [(0, 4)]),
        TrainedSamples((0, 0, 0), [(8, 12)]),
    )
    values = np.zeros(4, np.float32)
    talk.ask(A, PushRequest(0, trained=[first]), values)
    talk.ask(B, PushRequest(0, trained=[second]), values)
    ((begun, _),) = talk.ask(A, RoundRequest(0, 1, 2, [A]))
    assert begun.trained == {B: [second]}
    ((begun, _),) = talk.ask(A, RoundRequest(0, 2, 2, [A]))
    assert not begun.trained


def test_a_newcomer_counts_from_the_beginning_of_the_round() -> None:
    talk = HostTalk(2, [A, B])
    for member in (A, B):
        talk.push(member, 0, 1.0)
    for member in (A, B):
        talk.ask(member, RoundRequest(0, 1, 1, [A, B]))
    talk.ask(A, RoundRequest(0, 1, 2, [A, B, C]))
    talk.push(A, 1, 1.0)
    ((begun, _),) = talk.ask(C, OpenRequest(0, "add", {}, 2, 2, [A, B, C]), np.zeros(4, np.float32))
    assert (begun.round, begun.clock) == (1, 1)


def test_a_member_that_leaves_the_round_is_not_waited_for() -> None:
    talk = HostTalk(0, [A, B])
    talk.push(A, 0, 1.0)
    waiting = talk.ask(A, PullRequest(1))
    talk.ask(B, LeaveRoundRequest(0))
    assert isinstance(waiting[-1][0], ValuesHead)


def test_bad_requests_are_answered_with_what_is_wrong() -> None:
    talk = HostTalk(None, [A])
    ((reply, _),) = talk.ask(A, PullRequest(0, channel=7))
    assert isinstance(reply, FailedReply)
    assert "which nobody has opened" in reply.text
    ((reply, _),) = talk.ask(A, PushRequest(5), np.zeros(4, np.float32))
    assert "pushes step 5 where 0 comes next" in reply.text
    ((reply, _),) = talk.ask(A, OpenRequest(0, "add", {}, None, 1, [A]), np.zeros(9, np.float32))
    assert "opens shard 0 with 9 elements; it has 4" in reply.text


@pytest.mark.parametrize("seed", range(50))
def test_random_schedules_lose_no_update_and_keep_the_bound(seed: int) -> None:
    """Members push in any order and are lost anywhere: values are the sum of all that was counted."""
    chance = random.Random(seed)
    bound, members = chance.choice([0, 1, 3, None]), [A, B, C]
    talk, clocks, total, generation = HostTalk(bound, members), dict.fromkeys(members, 0), 0.0, 1
    for _ in range(60):
        member = chance.choice(members)
        behind = clocks[member] - min(clocks[each] for each in members)
        if bound is not None and behind > bound:
            continue
        if len(members) > 1 and chance.random() < 0.02:
            generation += 1
            members.remove(member)
            talk.ask(members[0], RoundRequest(0, 0, generation, members))
            continue
        value = float(chance.randrange(1, 1000))
        assert talk.push(member, clocks[member], value) == "APPLIED"
        clocks[member], total = clocks[member] + 1, total + value
        found = talk.ask(member, PullRequest(clocks[member]))
        if isinstance(found[-1][0], ValuesHead) and bound is not None:
            assert clocks[member] - found[-1][0].minimum <= bound
    for member in members:
        talk.ask(member, LeaveRoundRequest(0))
    lost = set(clocks) - set(members)
    ((begun, values),) = talk.ask(members[0], RoundRequest(0, 1, generation, members))
    assert begun.counted == {member: clocks[member] for member in lost}
    assert values.tolist() == [total] * 4
