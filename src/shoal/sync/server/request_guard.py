"""What a server between hosts believes: the launcher about members, the run's own workers about sizes and rounds.

A remote worker may send bad numbers. It must not begin a round that others are in the middle of, give a shard its first
values, name the members, or make the server keep more than an honest member would. What it asks too early waits here;
what no honest member asks is refused. Where no worker of the machine of the run is left, all are believed alike.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.core.errors import PayloadError
from shoal.groups.host_workers import leading_members
from shoal.launch.service_channel import ServiceView
from shoal.sync.server.messages import (
    PARTS,
    ROWS,
    DeclareRequest,
    OpenRequest,
    PushRequest,
    RoundRequest,
    ShardRequest,
    SumRequest,
    TableRequest,
    TensorSize,
)

CODED_PLACE, PARTS_PLACE = 1, 2
"""Where a channel's declaration has the most bytes of a coded push, and the bytes that say what lies in the shard."""
MOST_EARLY = 16
"""Requests of one member that may wait here, beside one for each tensor of its channels."""


@dataclass(frozen=True, eq=False)
class EarlyRequest:
    """A request that waits for the launcher's word, or for that of the run's own workers."""

    member: str
    number: int
    request: ShardRequest
    arrays: Sequence[Any]


@dataclass
class RequestGuard:
    """Of one server; `rounds` are those its shards are in, by channel."""

    view: ServiceView = field(default_factory=ServiceView)
    tensors: dict[int, tuple[TensorSize, ...]] = field(default_factory=dict)
    """By channel."""
    early: list[EarlyRequest] = field(default_factory=list)

    def declare(self, member: str, request: DeclareRequest) -> bool:
        """Take the sizes of a channel; whether they are new. PayloadError: they contradict others'."""
        if member not in self.view.own:
            raise PayloadError(f"{member} declares channel {request.channel}; only the run's own workers do")
        known = self.tensors.setdefault(request.channel, request.tensors)
        if known != request.tensors:
            raise PayloadError(f"{member} declares channel {request.channel} otherwise than others: {known[:3]}")
        # the same object only if it was put there just now
        return known is request.tensors

    def check(self, member: str, request: ShardRequest, arrays: Sequence[Any]) -> None:
        """PayloadError for what no honest member asks."""
        if isinstance(request, SumRequest | OpenRequest | RoundRequest):
            # of a later view: the request waits for it, and is checked again
            same = request.generation == self.view.generation
            if same and tuple(request.members) != self._members_of(request):
                raise PayloadError(f"{member} names other members than the view of generation {request.generation} has")
        # these read whole tables, or set rows to anything
        if isinstance(request, TableRequest) and member not in self.view.own:
            raise PayloadError(f"{member} asks for a checkpoint's part of a table; only the run's own workers do")
        if self._is_table(request.channel):
            self._check_rows(member, request, arrays)
        elif isinstance(request, SumRequest):
            self._check_size(member, request.channel, request.index, arrays, request.dtype)
        elif isinstance(request, PushRequest) and len(self.tensors.get(request.channel, ())) > CODED_PLACE:
            self._check_payload(member, request, arrays)
        elif isinstance(request, OpenRequest) and len(self.tensors.get(request.channel, ())) > PARTS_PLACE:
            self._check_size(member, request.channel, 0, arrays[:1], "float32")
            self._check_size(member, request.channel, PARTS_PLACE, arrays[1:], PARTS)
        elif isinstance(request, OpenRequest | PushRequest):
            self._check_size(member, request.channel, 0, arrays, "float32")
        elif arrays:
            raise PayloadError(f"{member} sends {len(arrays)} arrays with a {type(request).__name__}")
        if isinstance(request, PushRequest) and not 0 <= request.weight <= 1:
            raise PayloadError(f"{member} pushes with weight {request.weight}; a share is 0 to 1")

    def _members_of(self, request: SumRequest | OpenRequest | RoundRequest) -> tuple[str, ...]:
        """Sums are those of the first worker of each host."""
        if not isinstance(request, SumRequest) or not self.view.infos:
            return self.view.members
        return tuple(leading_members(self.view.members, [info.host_group for info in self.view.infos]))

    def _is_table(self, channel: int) -> bool:
        return [tensor.dtype for tensor in self.tensors.get(channel, ())] == [ROWS]

    def _check_rows(self, member: str, request: ShardRequest, arrays: Sequence[Any]) -> None:
        """What rows there are, the table knows."""
        most = self.tensors[request.channel][0].size
        found = [memoryview(array).nbytes for array in arrays]
        if sum(found) > most or isinstance(request, SumRequest) or (isinstance(request, OpenRequest) and any(found)):
            raise PayloadError(
                f"{member} sends a {type(request).__name__} with {found} bytes to the table of channel "
                f"{request.channel}, which takes rows of at most {most} bytes"
            )

    def _check_size(self, member: str, channel: int, index: int, arrays: Sequence[Any], dtype: str) -> None:
        tensors = self.tensors.get(channel, ())
        if index >= len(tensors):
            raise PayloadError(f"{member} sends tensor {index} of channel {channel}, which has {len(tensors)}")
        found = [memoryview(array).nbytes for array in arrays]
        if found != [tensors[index].size] or dtype != tensors[index].dtype:
            raise PayloadError(
                f"{member} sends {found} bytes of {dtype} for tensor {index} of channel {channel}, which has "
                f"{tensors[index].size} of {tensors[index].dtype}"
            )

    def _check_payload(self, member: str, request: PushRequest, arrays: Sequence[Any]) -> None:
        most = self.tensors[request.channel][CODED_PLACE].size
        found = [memoryview(array).nbytes for array in arrays]
        if len(found) != request.is_finite or any(not 0 < size <= most for size in found):
            raise PayloadError(
                f"{member} pushes {found} bytes to channel {request.channel}, whose codec makes 1 to {most}"
            )

    def is_early(self, member: str, request: ShardRequest, rounds: dict[int, int]) -> bool:
        """Whether others have to speak first."""
        if isinstance(request, SumRequest | OpenRequest | RoundRequest) and request.generation > self.view.generation:
            return True
        if member in self.view.own:
            return False
        # the first values of a shard are to be those of the run's own workers
        if isinstance(request, OpenRequest):
            return request.channel not in rounds
        # a round that begins levels the clocks of all
        return isinstance(request, RoundRequest) and request.round > rounds.get(request.channel, 0)

    def keep(self, early: EarlyRequest) -> None:
        """Let a request wait. PayloadError: there are too many of its member."""
        most = MOST_EARLY + sum(map(len, self.tensors.values()))
        waiting = Counter(each.member for each in self.early)[early.member]
        if waiting >= most:
            raise PayloadError(f"{early.member} has {waiting} requests that come before their time; {most} may wait")
        self.early.append(early)

    def take_due(self, rounds: dict[int, int]) -> list[EarlyRequest]:
        """Take out the requests that need not wait any more; those of lost members are dropped."""
        # generation 0: the launcher has not named anybody yet
        here = [each for each in self.early if each.member in self.view.members or not self.view.generation]
        due = [each for each in here if not self.is_early(each.member, each.request, rounds)]
        self.early = [each for each in here if each not in due]
        return due
