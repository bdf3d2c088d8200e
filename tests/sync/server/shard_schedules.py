"""Random schedules of a shard and its members in virtual time: delays, messages that come twice, losses, newcomers.

A member pulls, computes for a random time, pushes, and goes on. The network delays every message by itself but keeps
the order of one sender, as links do; a push may be sent again at any later time. Everything follows from the seed.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from shoal.sync.server.rules.base import FloatArray, ServerRule
from shoal.sync.server.shard import ParameterShard
from shoal.sync.server.shard_state import JournalEntry, PushOutcome, ShardUpdate, ShardValues

SIZE = 5
Action = Callable[[], None]


@dataclass
class SimulatedMember:
    name: str
    steps: int
    speed: float
    clock: int = 0
    first: int = 0
    """The clock at which it entered."""
    lost: bool = False
    killed: bool = False
    """Whether it was lost before it had done its steps."""
    counted: list[ShardUpdate] = field(default_factory=list)
    """Its pushes that were acknowledged as applied."""
    reads: list[ShardValues] = field(default_factory=list)
    quiet: float = 0.0
    """When its last message arrives: later ones come after it."""

    @property
    def done(self) -> bool:
        return self.clock - self.first >= self.steps


class ShardSchedule:
    """One run of one shard; `make` gives the update of a member's step."""

    def __init__(
        self,
        seed: int,
        rule: ServerRule,
        bound: int | None,
        make: Callable[[str, int, FloatArray], FloatArray],
        losses: bool = True,
        adaptive: bool = False,
    ) -> None:
        """`adaptive`: updates count the less the staler they are."""
        self.random = random.Random(seed)
        self.journal: list[JournalEntry] = []
        self.adaptive = adaptive
        self.make, self.now, self._numbers = make, 0.0, itertools.count()
        self._events: list[tuple[float, int, Action]] = []
        count = self.random.randint(1, 5)
        self.members = [self._member(f"w{number}.0") for number in range(count)]
        self.start = np.array([self.random.randint(-8, 8) for _ in range(SIZE)], np.float32)
        self.founders = [member.name for member in self.members]
        self.shard = ParameterShard(self.start, rule, self.founders, bound, self.journal.append)
        self.widest = 0
        """The largest lead of a member over the slowest of the view, when it was given values."""
        for member in self.members:
            self._later(0.0, lambda member=member: self._pull(member))
        if losses:
            for _ in range(self.random.randint(0, count - 1)):
                self._later(self.random.uniform(0, 30), self._lose)
            if self.random.random() < 0.4:
                self._later(self.random.uniform(0, 30), self._enter)

    def _member(self, name: str) -> SimulatedMember:
        return SimulatedMember(name, self.random.randint(3, 8), self.random.choice([0.5, 1.0, 1.0, 6.0]))

    def _later(self, seconds: float, action: Action) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), action))

    def run(self) -> "ShardSchedule":
        while self._events:
            self.now, _, action = heapq.heappop(self._events)
            action()
        return self

    def _send(self, member: SimulatedMember, action: Action) -> None:
        member.quiet = max(member.quiet, self.now + self.random.uniform(0, 2))
        self._later(member.quiet - self.now, action)

    def _pull(self, member: SimulatedMember) -> None:
        self._send(member, lambda clock=member.clock: self._answer(self.shard.pull(member.name, clock)))

    def _answer(self, found: ShardValues | None) -> None:
        for values in [*([found] if found else []), *self.shard.release()]:
            self.widest = max(self.widest, values.clock - values.minimum)
            self._later(self.random.uniform(0, 2), lambda values=values: self._compute(values))

    def _compute(self, values: ShardValues) -> None:
        member = next(each for each in self.members if each.name == values.member)
        if not member.lost and not member.done and values.clock == member.clock:
            member.reads.append(values)
            self._later(self.random.expovariate(1 / member.speed), lambda: self._push(member, values))

    def _push(self, member: SimulatedMember, values: ShardValues) -> None:
        if member.lost:
            return
        made, seen = self.make(member.name, member.clock, values.values), values.version if self.adaptive else None
        update = ShardUpdate(member.name, member.clock, made, version=seen)
        member.clock += 1
        self._send(member, lambda: self._arrive(member, update))
        if self.random.random() < 0.3:  # sent again: the acknowledgement was lost
            self._later(self.random.uniform(3, 20), lambda: self._arrive(member, update))
        if member.done:
            self._later(20.0, lambda: self._leave(member))
        else:
            self._pull(member)

    def _arrive(self, member: SimulatedMember, update: ShardUpdate) -> None:
        if self.shard.push(update) is PushOutcome.APPLIED:
            member.counted.append(update)
        self._answer(None)

    def _living(self) -> list[SimulatedMember]:
        return [member for member in self.members if not member.lost]

    def _lose(self) -> None:
        """What it sent last may still arrive: before the others know, or after."""
        if len(living := [member for member in self._living() if not member.done]) > 1:
            member = self.random.choice(living)
            member.lost = member.killed = True
            self._later(self.random.uniform(0, 4), self._change)

    def _leave(self, member: SimulatedMember) -> None:
        member.lost = True
        self._change()

    def _enter(self) -> None:
        if any(not member.done for member in self._living()):
            self.members.append(self._member(f"w{len(self.members)}.0"))
            self._change()
            newcomer = self.members[-1]
            newcomer.clock = newcomer.first = self.shard.state.clocks[newcomer.name]
            self._pull(newcomer)

    def _change(self) -> None:
        self.shard.change_view([member.name for member in self._living()])
        self._answer(None)

    @property
    def counted(self) -> list[ShardUpdate]:
        return [update for member in self.members for update in member.counted]

    def replayed(self) -> ParameterShard:
        """Another shard that does what the journal of this one says."""
        again = ParameterShard(self.start, self.shard.rule, self.founders, self.shard.bound)
        for entry in self.journal:
            again.replay(entry)
        return again
