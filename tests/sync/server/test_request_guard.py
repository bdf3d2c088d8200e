"""What a server between hosts believes: a remote member that lies harms nobody, and is named."""

from typing import Any

import numpy as np
import pytest

from shoal.core.errors import PayloadError
from shoal.launch.service_channel import ServiceView
from shoal.membership.protocol import MemberInfo
from shoal.sync.server.host import ShardHost
from shoal.sync.server.messages import (
    DeclareRequest,
    FailedReply,
    OpenRequest,
    PushReply,
    PushRequest,
    RoundReply,
    RoundRequest,
    SumReply,
    SumRequest,
    TensorSize,
    WaitReply,
    WhoRequest,
    encode,
)
from shoal.sync.server.request_guard import RequestGuard

OWN, REMOTE, OTHER = "w0.0", "w1.1", "w2.2"
ALL = [OWN, REMOTE, OTHER]
SHARD, SUMS = 0, 1


def view(generation: int, *members: str) -> ServiceView:
    return ServiceView(generation, members, tuple(MemberInfo(remote=member != OWN) for member in members))


class GuardedTalk:
    """Members that talk to a host between hosts; replies by request."""

    def __init__(self) -> None:
        self.replies: dict[int, list[tuple[Any, list[float]]]] = {}
        self.accused: list[str] = []
        self.host = ShardHost(self._note, RequestGuard(), lambda member, why: self.accused.append(member))
        self.host.follow(view(1, *ALL))
        self._number = 0
        self.host.declare(OWN, DeclareRequest(SHARD, (TensorSize("float32", 16),)))
        self.host.declare(OWN, DeclareRequest(SUMS, (TensorSize("float32", 8), TensorSize("float32", 16))))

    def _note(self, member: str, number: int, reply: Any, arrays: Any) -> None:
        values = np.frombuffer(arrays[0], np.float32).tolist() if len(arrays) else []
        self.replies.setdefault(number, []).append((reply, values))

    def ask(self, member: str, request: Any, values: list[float] | None = None) -> list[tuple[Any, list[float]]]:
        self._number += 1
        arrays = [np.array(values, np.float32)] if values is not None else []
        self.host.handle(member, self._number, encode(request), arrays)
        return self.replies.setdefault(self._number, [])

    def open(self, member: str, value: float, generation: int = 1) -> list[tuple[Any, list[float]]]:
        return self.ask(member, OpenRequest(SHARD, "add", {}, None, generation, ALL), [value] * 4)

    def sum(
        self, member: str, value: float, generation: int = 1, number: int = 1, members: list[str] = ALL
    ) -> list[tuple[Any, list[float]]]:
        return self.ask(member, SumRequest(generation, SUMS, 0, number, members, "float32"), [value] * 2)


def test_the_first_values_of_a_shard_are_those_of_the_runs_own_worker() -> None:
    talk = GuardedTalk()
    remote = talk.open(REMOTE, 666.0)
    assert remote == []
    own = talk.open(OWN, 1.0)
    assert own[0][1] == remote[0][1] == [1.0] * 4


def test_a_remote_member_cannot_begin_a_round_that_others_are_in_the_middle_of() -> None:
    talk = GuardedTalk()
    talk.open(OWN, 0.0)
    early = talk.ask(REMOTE, RoundRequest(SHARD, 1, 1, ALL))
    ((counted, _),) = talk.ask(OTHER, PushRequest(0, 1.0, SHARD), [5.0] * 4)
    assert isinstance(counted, PushReply)
    assert early == []
    ((begun, values),) = talk.ask(OWN, RoundRequest(SHARD, 1, 1, ALL))
    assert isinstance(begun, RoundReply)
    assert early[0][1] == values == [5.0] * 4


@pytest.mark.parametrize(
    ("request_", "values"),
    [
        (RoundRequest(SHARD, 0, 1, [REMOTE]), None),
        (PushRequest(0, 1.0, SHARD), [1.0] * 400),
        (PushRequest(0, 1e30, SHARD), [1.0] * 4),
        (PushRequest(7, 1.0, SHARD), [1.0] * 4),
        (SumRequest(1, SUMS, 0, 1, [REMOTE], "float32"), [1.0] * 2),
        (SumRequest(1, SUMS, 0, 1, ALL, "float64"), [1.0] * 2),
        (SumRequest(1, SUMS, 2, 1, ALL, "float32"), [1.0] * 2),
        (SumRequest(1, 99, 0, 1, ALL, "float32"), [1.0] * 2),
        (WhoRequest(1, SHARD), [1.0] * 4),
    ],
    ids=["members", "too large", "weight", "clock", "sum of its own", "dtype", "tensor", "channel", "odd array"],
)
def test_what_no_honest_member_asks_costs_that_member_alone(request_: Any, values: list[float] | None) -> None:
    talk = GuardedTalk()
    talk.open(OWN, 0.0)
    ((reply, _),) = talk.ask(REMOTE, request_, values)
    assert isinstance(reply, FailedReply)
    assert talk.accused == [REMOTE]
    talk.host.follow(view(2, OWN, OTHER))
    parts = [talk.sum(member, 1.0, 2, members=[OWN, OTHER]) for member in (OWN, OTHER)]
    assert [part[0][1] for part in parts] == [[2.0] * 2] * 2


def test_a_number_that_is_not_finite_costs_only_its_push() -> None:
    talk = GuardedTalk()
    talk.open(OWN, 0.0)
    ((refused, _),) = talk.ask(REMOTE, PushRequest(0, 1.0, SHARD), [float("nan")] * 4)
    assert refused.outcome == "REFUSED"
    assert talk.accused == []


def test_a_view_counts_when_the_launcher_tells_of_it() -> None:
    talk = GuardedTalk()
    early = talk.sum(REMOTE, 1.0, generation=2, members=[OWN, REMOTE])
    assert early == []
    talk.host.follow(view(2, OWN, REMOTE))
    ((summed, values),) = talk.sum(OWN, 2.0, generation=2, members=[OWN, REMOTE])
    assert isinstance(summed, SumReply)
    assert early[0][1] == values == [3.0] * 2
    lying = talk.sum(REMOTE, 1.0, generation=3, members=[REMOTE])
    talk.host.follow(view(3, OWN, REMOTE, OTHER))
    assert isinstance(lying[0][0], FailedReply)


def test_sums_of_an_older_view_are_not_begun_again() -> None:
    talk = GuardedTalk()
    talk.host.follow(view(2, *ALL))
    assert talk.sum(REMOTE, 1.0, generation=1, members=[REMOTE]) == []


def test_a_member_may_not_make_the_server_keep_more_and_more() -> None:
    talk = GuardedTalk()
    replies = [talk.sum(REMOTE, 1.0, number=number) for number in range(8)]
    refused = [number for number, each in enumerate(replies) if each and isinstance(each[0][0], FailedReply)]
    assert refused == list(range(2, 8))
    early = [talk.sum(REMOTE, 1.0, generation=9, number=number) for number in range(40)]
    assert sum(bool(each) for each in early) > 10


def test_only_the_runs_own_workers_say_what_will_come() -> None:
    talk = GuardedTalk()
    with pytest.raises(PayloadError, match="only the run's own workers do"):
        talk.host.declare(REMOTE, DeclareRequest(7, (TensorSize("float32", 1 << 34),)))
    assert not talk.host.declare(OWN, DeclareRequest(SHARD, (TensorSize("float32", 16),)))
    with pytest.raises(PayloadError, match="otherwise than others"):
        talk.host.declare(OWN, DeclareRequest(SHARD, (TensorSize("float32", 20),)))


def test_the_members_a_request_waits_for_are_named() -> None:
    talk = GuardedTalk()
    waiting = talk.sum(OWN, 1.0)
    talk.ask(OWN, WhoRequest(3, SUMS))
    assert waiting == []
    talk.ask(OWN, WhoRequest(1, SUMS))
    ((told, _),) = waiting
    assert isinstance(told, WaitReply)
    assert told.slowest == [REMOTE, OTHER]
