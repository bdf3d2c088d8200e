"""A shard whose steps are taken without the slowest members: backup workers, and a deadline.

    push of step t      t is open   ──> kept; once at most `backups` members are missing, the step is taken
                        t is taken  ──> the push is late: dropped, or kept for the step that is open now
    expire(t)           the deadline of step t is over: it is taken with what has come
    pull(c)             answered once step c - 1 is taken; the member goes on with the step that is open then

Chen et al., "Revisiting Distributed Synchronous SGD", ICLR workshop 2016: the first p - b gradients make the step, and
late ones are dropped, because stale gradients cost accuracy. All who begin a step begin with the same values. Do not
use it where slow members hold samples that others lack: what they push counts less often.

A shard knows no time: `StepTimer` tells the server that owns both when a step is overdue.
"""

from collections.abc import Callable, Sequence

from shoal.core.errors import PayloadError, UsageError
from shoal.sync.server.messages import StepDeadline
from shoal.sync.server.rules.base import FloatArray, ServerRule
from shoal.sync.server.shard import ParameterShard, is_finite, scaled
from shoal.sync.server.shard_state import ClockEntry, ExpiryEntry, JournalEntry, PushOutcome, ShardUpdate


class DeadlineShard(ParameterShard):
    """`state.round` is the step that is open; a member's clock is the first step it may still push to."""

    def __init__(
        self,
        values: FloatArray,
        rule: ServerRule,
        members: Sequence[str],
        terms: StepDeadline,
        journal: Callable[[JournalEntry], None] = lambda entry: None,
    ) -> None:
        if not rule.takes_deltas:
            raise UsageError(
                f"{type(rule).__name__} with a deadline: only changes of parameters may be late; write add"
            )
        super().__init__(values, rule, members, 0, journal)
        self.terms = terms

    @property
    def minimum(self) -> int:
        """Of whoever begins a step now: nothing it gets is stale."""
        return self.state.round

    @property
    def has_begun(self) -> bool:
        """Whether the open step has a push, be it one that was refused."""
        step, clocks = self.state.round, self.state.clocks.values()
        return any(clock > step for clock in clocks) or any(u.clock == step for u in self._held.values())

    @property
    def missing(self) -> list[str]:
        """Members that may still push to the open step."""
        clocks, step = self.state.clocks, self.state.round
        return [member for member, clock in clocks.items() if clock <= step and member not in self.state.excused]

    @property
    def waiting(self) -> dict[str, list[str]]:
        return dict.fromkeys(super().waiting, self.missing)

    @property
    def _held(self) -> dict[str, ShardUpdate]:
        return self.state.held.get(self.state.round, {})

    def _check_clock(self, update: ShardUpdate) -> None:
        # a member that was late skips steps, so any clock up to the open step is honest
        if update.clock > self.state.round:
            raise PayloadError(f"{update.member} pushes step {update.clock} where {self.state.round} is open")

    def _take(self, update: ShardUpdate) -> PushOutcome:
        state, finite, late = self.state, is_finite(update.values), update.clock < self.state.round
        state.clocks[update.member] = update.clock + 1
        drops = late and not self.terms.adds
        if not drops:
            self._note_trained(update)
            if finite:  # by step, too: a member's late push and its next one may meet in one step
                state.held.setdefault(state.round, {})[f"{update.member} {update.clock}"] = update
        outcome = self._judge(update.member, finite)
        if outcome is not PushOutcome.APPLIED or not late:
            return outcome
        return PushOutcome.DROPPED if drops else PushOutcome.ADDED

    def _finish_rounds(self) -> None:
        # one step at most: no member can push to the next one before this one is taken
        if self.has_begun and len(self.missing) <= self.terms.backups:
            self._take_step()

    def expire(self, step: int) -> None:
        """The deadline of this step is over; nothing happens if it was taken meanwhile, or has no push yet."""
        if step == self.state.round and self.has_begun:
            self._journal(ExpiryEntry(step))
            self._take_step()

    def _take_step(self) -> None:
        """Those that came in time make up for the others: shares of a mean that are left out are missing from its sum.
        Where losses are sums every share is 1, and the sum of fewer samples is what was asked for."""
        held, step = self._held, self.state.round
        self.state.held.pop(step, None)
        self.state.round += 1
        total = sum(update.weight for update in held.values() if update.clock == step)
        factor = 1.0 / total if 0.0 < total < 1.0 else 1.0
        # by name, so that the bits do not depend on the order of arrival
        for name in sorted(held):
            update = held[name]
            self._apply(scaled(update.values, update.weight * (factor if update.clock == step else 1.0)))

    def level_clocks(self) -> int:
        self._journal(ClockEntry(None))
        if self._held:  # late pushes that no other has followed
            self._take_step()
        state = self.state
        state.clocks = dict.fromkeys(state.clocks, state.round)
        self.state.excused.clear()
        state.trained.clear()
        return state.round

    def replay(self, entry: JournalEntry) -> None:
        if isinstance(entry, ExpiryEntry):
            self.expire(entry.step)
        else:
            super().replay(entry)


class StepTimer:
    """Of one shard: how long its open step may still take. Asked after whatever may have changed the shard."""

    def __init__(self, shard: DeadlineShard) -> None:
        self.shard = shard
        self._step, self._since = -1, 0.0

    def seconds_left(self, moment: float) -> float | None:
        """None: nothing has come for the open step, and without a push there is nothing to take. 0: it is overdue."""
        if not self.shard.has_begun:
            return None
        # the first look since this step has a push: its time begins now
        if self._step != self.shard.state.round:
            self._step, self._since = self.shard.state.round, moment
        return max(0.0, self._since + self.shard.terms.seconds - moment)
