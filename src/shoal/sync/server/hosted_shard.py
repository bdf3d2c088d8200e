"""A shard of a server process, and the round it is in: what lies between two meetings of all members."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from shoal.sync.server.changes import write_changes
from shoal.sync.server.clock_names import ClockNames
from shoal.sync.server.messages import OpenRequest, PullRequest, PushRequest, ValuesHead
from shoal.sync.server.rules.base import FloatArray
from shoal.sync.server.shard import ParameterShard
from shoal.sync.server.shard_codec import FloatReader
from shoal.sync.server.shard_kinds import make_shard
from shoal.sync.server.shard_state import PushOutcome, ShardUpdate, ShardValues
from shoal.sync.trained import TrainedSamples


@dataclass
class HostedShard:
    """A shard, and the round it is in."""

    opened: OpenRequest
    """What made it."""
    shard: ParameterShard
    generation: int
    start: FloatArray
    """The values when the round began."""
    version: int = 0
    """Updates in those values."""
    round: int = 0
    base: int = 0
    """The clock at which all members began the round."""
    reader: FloatReader = field(default_factory=FloatReader)
    """Of the bytes of pushes."""
    pulls: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Clock -> who waits, and the number of its request."""
    watches: list[tuple[str, int, int]] = field(default_factory=list)
    """Who wants to be told, by which request, and from how many updates on: the newest last."""
    held: dict[str, int | None] = field(default_factory=dict)
    """Member -> updates in the values that it had when it last asked."""
    lost: dict[str, int] = field(default_factory=dict)
    """Members lost in this round -> how many of their pushes in it count."""
    lost_before: dict[str, int] = field(default_factory=dict)
    """The same of the round before."""
    trained_before: dict[str, list[TrainedSamples]] = field(default_factory=dict)
    """The leased samples of those pushes."""
    together: ClockNames | None = None
    """Where the workers of a host push together; None: every member has a clock of its own name."""
    members: tuple[str, ...] = ()
    """Of the newest view."""
    keeps_copies: bool = False
    """Whether pushes are copied as they are read."""

    @classmethod
    def open(cls, request: OpenRequest, values: FloatArray, reader: FloatReader | None = None) -> "HostedShard":
        """UsageError: the request is for no shard there can be."""
        shard = make_shard(request, values)
        reader = reader or FloatReader()
        if reader.tells_changes:
            shard.tell_changes()
        opened = cls(request, shard, request.generation, values.copy(), reader=reader)
        if request.by_host:
            opened.together, opened.generation = ClockNames(), -1  # who is on which host comes with the first view
        return opened

    def share(self, shares: bool) -> None:
        """Whether pushes lie in memory that their members write to again, and values are copied as they are sent."""
        self.shard.lends_values = shares
        # with bound 0 a push waits for those of others, and its member need not
        self.keeps_copies = shares and self.shard.bound == 0

    def follow(self, generation: int, members: Sequence[str], hosts: Mapping[str, str] | None = None) -> None:
        """Go on with the members of the newest view; newcomers begin with the round, as all others did. `hosts`: on
        which host each is; None: all are on one."""
        # each member names the view once, and a slow one may be late
        if generation <= self.generation:
            return
        self.generation = generation
        if self.together is None:
            # read first, because `change_view` forgets the clocks of lost members
            before = dict(self.shard.state.clocks)
            self.lost.update({member: clock - self.base for member, clock in before.items() if member not in members})
            self.shard.change_view(members, self.base)
        else:
            lost = [member for member in self.members if member not in members]
            self.lost.update(self.together.steps_since(lost, self.base))
            self.shard.change_view(self.together.follow(members, hosts or {}), self.base)
            self._excuse(self.together.all_left(members))
        self.members = tuple(members)
        self._forget_pulls()
        self.watches = [watch for watch in self.watches if watch[0] in members]

    def _forget_pulls(self) -> None:
        """Nobody answers a member that is lost; the next worker of its host asks anew."""
        for clock, (member, _) in list(self.pulls.items()):
            if member not in self.members or clock not in self.shard.state.clocks:
                del self.pulls[clock]
                self.shard.state.waiting.pop(clock, None)

    def clock_of(self, member: str) -> str:
        """The name of the clock that this member's pushes count on."""
        return member if self.together is None else self.together.names.get(member, member)

    def leave(self, member: str) -> None:
        """A member makes no more steps in this round."""
        if self.together is None:
            self.shard.excuse(member)
        else:
            self.together.leave(member)
            self._excuse(self.together.all_left(self.members))

    def _excuse(self, clocks: set[str]) -> None:
        for clock in clocks - self.shard.state.excused:
            self.shard.excuse(clock)

    def find_slowest(self, clock: str) -> list[str]:
        """Members that a pull on this clock waits for."""
        slowest = self.shard.waiting.get(clock, [])
        if self.together is None:
            return slowest
        # reversed, so that the first worker of each host is named
        first = {self.clock_of(member): member for member in reversed(self.members)}
        return [first.get(each, each) for each in slowest]

    def take_watches(self) -> list[tuple[str, int]]:
        """Return who is to be told what of it: there are so many updates, or it watches anew."""
        version, newest = self.shard.state.version, {watch[0]: watch for watch in self.watches}
        due = [watch for watch in self.watches if version >= watch[2] or watch is not newest[watch[0]]]
        self.watches = [watch for watch in self.watches if watch not in due]
        return [(member, number) for member, number, _ in due]

    def enter(self, member: str) -> None:
        """A member has opened it: the round it is in says where the member begins."""

    def read_push(self, member: str, request: PushRequest, arrays: Sequence[Any]) -> ShardUpdate:
        """PayloadError: no worker of this model pushes that."""
        if self.together is not None:
            self.together.check(member, request.among)
        values, trained = self.reader.read(member, arrays, request.is_finite), tuple(request.trained)
        if self.keeps_copies:
            values = values.copy()
        return ShardUpdate(self.clock_of(member), request.clock, values, request.weight, trained, request.version)

    def note_pushed(self, request: PushRequest, outcome: PushOutcome) -> None:
        """A push has come to this: the changes in one that counts do, also of members that were lost meanwhile."""
        if self.together is not None and outcome in (PushOutcome.APPLIED, PushOutcome.REFUSED):
            self.together.count(request.among, request.clock)
            late = [member for member in request.among if member in self.lost]
            self.lost.update(self.together.steps_since(late, self.base))

    def want(self, member: str, request: PullRequest, arrays: Sequence[Any]) -> None:
        """Note what a member's pull is to bring."""
        self.held[self.clock_of(member)] = request.held

    def write_values(self, found: ShardValues) -> tuple[ValuesHead, list[Any]]:
        """The reply to a pull: all values, or those that have changed since the ones that the member has."""
        head, changes = ValuesHead(found.clock, found.minimum, found.version), self.shard.changes
        held = self.held.pop(found.member, None)
        places = changes.since(held) if changes is not None and held is not None else None
        data = write_changes(found.values, places)
        if places is None or data is None:
            return head, [found.values]
        return msgspec.structs.replace(head, changed=len(places)), [data] if len(places) else []

    def begin(self, number: int) -> None:
        """Begin a round, when the first member says so."""
        if number <= self.round:
            return
        # read before the clocks are levelled, which forgets who has trained what
        self.trained_before = self.shard.state.trained_by_lost
        self.round, self.base = number, self.shard.level_clocks()
        self.lost_before, self.lost = self.lost, {}
        self.start, self.version = self.shard.state.values.copy(), self.shard.state.version
        if self.together is not None:
            self.together.begin(self.members)
