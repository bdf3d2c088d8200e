"""A shard of the parameters: a pure state machine, without a socket or a clock of the wall.

    push(update)      apply it, once: a push that comes again, or too late, changes nothing
    pull(want)        the values, or None: the member waits until `release` has them
    change_view(…)    members come and go; nobody waits for a lost one
    release()         the pulls that no longer have to wait

A member's clock is the number of its pushes that were counted. A pull at clock c gets the values when every member of
the view is at clock c - bound or later, and this one's own pushes before c are in them. With bound 0 pushes are kept
until all members have made theirs, and applied as one round in the order of member names: the bits do not depend on
which arrived first, and nobody sees half a round. With another bound they are applied as they come.

A push that was counted survives the loss of its member. Replaying the journal on the state of the beginning gives the
same bits, for replicas and for proofs.
"""

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np

from shoal.core.errors import PayloadError, UsageError
from shoal.sync.server.changes import ElementChanges
from shoal.sync.server.rules.base import FloatArray, ServerRule
from shoal.sync.server.shard_state import (
    ClockEntry,
    JournalEntry,
    PushOutcome,
    ShardState,
    ShardUpdate,
    ShardValues,
    ViewEntry,
)
from shoal.sync.trained import check_trained

BLOCK = 1 << 15
"""Elements that are scaled and added at a time, so that what lies between stays in the cache."""
MOST_REFUSED = 3
"""Pushes in a row that are not finite, after which their member does harm."""


class ParameterShard:
    """`bound`: steps a member may be ahead of the slowest; None: any number (asynchronous)."""

    def __init__(
        self,
        values: FloatArray,
        rule: ServerRule,
        members: Sequence[str],
        bound: int | None,
        journal: Callable[[JournalEntry], None] = lambda entry: None,
    ) -> None:
        """`journal` is told of everything that changes the state, before it does."""
        if values.dtype != np.float32 or values.ndim != 1:
            raise UsageError(f"a shard of {values.dtype} with shape {values.shape}; it must be flat float32")
        if bound is not None and bound < 0:
            raise UsageError(f"a staleness bound of {bound}; it must be 0 or more, or None for asynchrony")
        if rule.needs_rounds and bound != 0:
            raise UsageError(f"{type(rule).__name__} with bound {bound}: it needs the pushes of all members; write 0")
        self.rule, self.bound, self._journal = rule, bound, journal
        slots = [np.zeros_like(values) for _ in range(rule.slots)]
        # a copy: the values may lie in a received message
        self.state = ShardState(values.copy(), slots, dict.fromkeys(members, 0))
        self.changes: ElementChanges | None = None
        """Where pulls may leave out what has not changed."""
        self.lends_values = False
        """Whether pulls get the values themselves, because they are copied before anything changes them."""

    @property
    def minimum(self) -> int:
        """The clock of the slowest member."""
        clocks = self.state.clocks
        return min(
            (c for member, c in clocks.items() if member not in self.state.excused),
            # all are excused: nobody is waited for
            default=max(clocks.values(), default=0),
        )

    def push(self, update: ShardUpdate) -> PushOutcome:
        """Count an update. PayloadError: no honest member sends it."""
        state, member = self.state, update.member
        if member in state.quarantined:
            return PushOutcome.QUARANTINED
        if member not in state.clocks:
            return PushOutcome.LATE
        # sent again after a takeover, or by the next worker of a host
        if update.clock < state.clocks[member]:
            return PushOutcome.AGAIN
        self._check_clock(update)
        self._check(update)
        # after the checks: a refused update changes nothing, so a replay must not meet it
        self._journal(update)
        outcome = self._take(update)
        self._finish_rounds()
        return outcome

    def _take(self, update: ShardUpdate) -> PushOutcome:
        state, member, finite = self.state, update.member, is_finite(update.values)
        # also if the numbers are not finite: others must not wait for a step that is over
        state.clocks[member] += 1
        self._note_trained(update)
        if self.bound == 0:
            state.held.setdefault(update.clock, {})
            if finite:
                state.held[update.clock][member] = update
        elif finite:
            self._apply_update(update, update.weight / self._staleness(update))
        return self._judge(member, finite)

    def _note_trained(self, update: ShardUpdate) -> None:
        """Its samples count."""
        if update.trained:
            self.state.trained.setdefault(update.member, []).extend(update.trained)

    def _check_clock(self, update: ShardUpdate) -> None:
        expected = self.state.clocks[update.member]
        if update.clock != expected:
            raise PayloadError(f"{update.member} pushes step {update.clock} where {expected} comes next")

    def _check(self, update: ShardUpdate) -> None:
        if update.values.dtype != np.float32 or update.values.shape != self.state.values.shape:
            found, size = (update.values.dtype, update.values.shape), self.state.values.size
            raise PayloadError(f"{update.member} pushes {found[0]} of shape {found[1]} to a shard of {size} float32")
        self._check_weight(update)

    def _check_weight(self, update: ShardUpdate) -> None:
        if not (math.isfinite(update.weight) and update.weight >= 0):
            raise PayloadError(f"{update.member} pushes with weight {update.weight}; it must be finite, 0 or more")
        if update.version is not None and update.version > self.state.version:
            raise PayloadError(f"{update.member} has seen {update.version} updates, and there are {self.state.version}")
        check_trained(update.trained)

    def _judge(self, member: str, finite: bool) -> PushOutcome:
        state = self.state
        if finite:
            state.refused.pop(member, None)
            return PushOutcome.APPLIED
        state.refused[member] = state.refused.get(member, 0) + 1
        if state.refused[member] < MOST_REFUSED:
            return PushOutcome.REFUSED
        state.quarantined.add(member)
        del state.clocks[member]
        self.state.waiting.pop(member, None)
        return PushOutcome.QUARANTINED

    def _staleness(self, update: ShardUpdate) -> float:
        """Updates of others that its member had not seen, for each of them; 1 where all push in turns.

        Jiang et al., "Heterogeneity-aware Distributed Parameter Servers", SIGMOD 2017 (DynSGD). Do not use it where the
        learning rate leaves room for stale updates: they then help in full.
        """
        others = len(self.state.clocks) - 1
        if update.version is None or others < 1:
            return 1.0
        return max(1.0, (self.state.version - update.version) / others)

    def _apply_update(self, update: ShardUpdate, weight: float) -> None:
        # in blocks only where a scaled copy lies between; changes are noted of whole updates
        if weight == 1.0 or self.changes is not None:
            self._apply(scaled(update.values, weight))
            return
        state = self.state
        for block in (slice(at, at + BLOCK) for at in range(0, len(update.values), BLOCK)):
            slots, part = [slot[block] for slot in state.slots], scaled(update.values[block], weight)
            self.rule.apply(state.values[block], slots, part, state.version)
        state.version += 1

    def _apply(self, update: FloatArray) -> None:
        self.rule.apply(self.state.values, self.state.slots, update, self.state.version)
        self.state.version += 1
        if self.changes is not None:
            self.changes.note(update, self.state.version)

    def _finish_rounds(self) -> None:
        """Of bound 0: apply every round that all members of the view have pushed to."""
        state = self.state
        while self.bound == 0 and state.clocks and state.round < self.minimum:
            state.round += 1
            self._apply_round(state.held.pop(state.round - 1, {}))

    def _apply_round(self, updates: dict[str, ShardUpdate]) -> None:
        ordered = [updates[member] for member in sorted(updates)]
        # changes of parameters add up; a rule that makes the step itself gets the mean gradient
        if self.rule.takes_deltas:
            for update in ordered:
                self._apply(scaled(update.values, update.weight))
        elif (total := sum(update.weight for update in ordered)) > 0:
            self._apply(_weighted_mean(ordered, total))

    def excuse(self, member: str) -> None:
        """Wait for this member's clock no more, until all clocks are level again."""
        self._journal(ClockEntry(member))
        self.state.excused.add(member)
        self._finish_rounds()

    def level_clocks(self) -> int:
        """All members have met and pushed all they had: apply what is kept, and set all clocks to the furthest."""
        self._journal(ClockEntry(None))
        state = self.state
        # rounds that some members left before they were complete
        for clock in sorted(state.held):
            self._apply_round(state.held.pop(clock))
        furthest = max(state.clocks.values(), default=state.round)
        state.clocks = dict.fromkeys(state.clocks, furthest)
        state.round = max(state.round, furthest)
        self.state.excused.clear()
        state.trained.clear()
        return furthest

    def pull(self, member: str, clock: int) -> ShardValues | None:
        """Return the values for step `clock` of a member; None if it has to wait, or is none. A newer pull of the same
        member takes the place of one that waits."""
        self.state.waiting.pop(member, None)
        if member not in self.state.clocks:
            return None
        if self._is_ready(member, clock):
            return self._values(member, clock)
        self.state.waiting[member] = clock
        return None

    def tell_changes(self) -> None:
        """Remember from now on which elements change, if the rule leaves the others as they are."""
        if self.rule.zero_changes_nothing:
            self.changes = ElementChanges(self.state.values.size, self.state.version)

    def _is_ready(self, member: str, clock: int) -> bool:
        # a member never gets values without its own pushes, whatever the bound
        own = self.state.clocks[member] >= clock
        return own and (self.bound is None or self.minimum >= clock - self.bound)

    def _values(self, member: str, clock: int) -> ShardValues:
        state = self.state
        values = state.values if self.lends_values else state.values.copy()
        return ShardValues(member, clock, self.minimum, state.version, values)

    def release(self) -> list[ShardValues]:
        """Answer the pulls that waited and need not any more; asked after every push and change of view."""
        ready = [(member, clock) for member, clock in self.state.waiting.items() if self._is_ready(member, clock)]
        for member, _ in ready:
            del self.state.waiting[member]
        return [self._values(member, clock) for member, clock in ready]

    @property
    def waiting(self) -> dict[str, list[str]]:
        """Who waits for whom: member -> the slowest members of the view."""
        slowest = [member for member, clock in self.state.clocks.items() if clock == self.minimum]
        return dict.fromkeys(self.state.waiting, slowest)

    def change_view(self, members: Collection[str], start: int | None = None) -> None:
        """Go on with these members. What lost ones pushed stays; newcomers begin at clock `start`, or else at that of
        the slowest member of those that stay, or of all that were there if none does."""
        state = self.state
        entered = [member for member in members if member not in state.quarantined]
        staying = [clock for member, clock in state.clocks.items() if member in entered]
        self._journal(ViewEntry(tuple(entered), start))
        start = min(staying, default=max(self.minimum, state.round)) if start is None else start
        state.clocks = {member: state.clocks.get(member, start) for member in entered}
        self.state.waiting = {member: clock for member, clock in self.state.waiting.items() if member in state.clocks}
        for member in set(state.refused) - set(entered):
            del state.refused[member]
        # a round may have waited for lost members alone
        self._finish_rounds()

    def replay(self, entry: JournalEntry) -> None:
        """Do what a journal of another shard says; on a state that was its own this gives its bits."""
        if isinstance(entry, ViewEntry):
            self.change_view(entry.members, entry.start)
        elif isinstance(entry, ClockEntry):
            self._replay_clock(entry.member)
        else:
            assert isinstance(entry, ShardUpdate)  # others are of shards with deadlines
            self.push(entry)

    def _replay_clock(self, member: str | None) -> None:
        if member is None:
            self.level_clocks()
        else:
            self.excuse(member)


def is_finite(values: FloatArray) -> bool:
    return bool(np.isfinite(values).all())


def scaled(values: FloatArray, weight: float) -> FloatArray:
    """Return `values` times `weight`; the same array where that is 1."""
    return values if weight == 1.0 else values * np.float32(weight)


def _weighted_mean(updates: Sequence[ShardUpdate], total: float) -> FloatArray:
    mean = np.zeros_like(updates[0].values)
    for update in updates:
        mean += np.float32(update.weight / total) * update.values
    return mean
