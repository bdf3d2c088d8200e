"""Convergence guard: every k steps, compare what was applied with what would have been applied without a codec.

    every exchange     own += this worker's gradient        applied += the decoded sum
    every k-th         true = sum of all workers' own       cosine(applied, true)        both begin anew

Over k steps, not one: with error feedback a step sends what earlier steps held back, so a single step is far from its
gradient though nothing is lost. Without feedback the noise of k steps averages out, and a bias does not. Below the
budget a sparsifier sends twice as much from the next step on, up to everything; other codecs are only reported. All
workers hold the same bits of both sums, so all decide alike without a message. Costs four copies of the gradients, and
one exchange without a codec in k.

A window belongs to one view: other members, newcomers among them, begin a new one with their first exchange. Newcomers
take over how far the others have tightened.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.sync.aggregate.base import PayloadAggregator
from shoal.sync.aggregate.gather import GatherAggregator
from shoal.sync.engine.base import AllReduceEngine
from shoal.sync.observer import GuardTightened
from shoal.wire.bucket import BucketSpace
from shoal.wire.codec import State
from shoal.wire.layout import FlatLayout

DIGITS = 6
"""Of the cosine: beyond them the order of additions would show."""


@dataclass(frozen=True)
class GuardFinding:
    """What the guard found in one window."""

    cosine: float
    steps: int
    """Exchanges of the window."""


class ConvergenceGuard:
    """Watches one exchange, whose buckets all start before the first is finished. `generation`: the view's number."""

    def __init__(
        self,
        budget: float,
        every: int,
        engine: AllReduceEngine,
        ratio: float | None,
        generation: Callable[[], int] = lambda: 0,
    ) -> None:
        """`ratio`: the share of the elements that the codec sends; None for a dense codec."""
        self.budget, self.every, self.engine, self._now = budget, every, engine, generation
        self._ratio = torch.tensor([ratio or 0.0], dtype=torch.float64)
        self._before = float(self._ratio)
        """The ratio as it was when the exchange began."""
        self._count = 0
        """Exchanges of the window, before the one under way."""
        self._generation = -1
        """The view of the window."""
        self._open: set[int] = set()
        self._due = self._used = False

    def open(self, layouts: Sequence[FlatLayout]) -> None:
        cpu = torch.device("cpu")
        self._pairs = self.engine.open([BucketSpace(layout.numel, torch.float32, cpu) for layout in layouts])
        self._own = [torch.zeros(layout.numel) for layout in layouts]
        self._applied = [torch.zeros(layout.numel) for layout in layouts]
        self._sums = torch.zeros(3, dtype=torch.float64)

    def prepare(self) -> None:
        """Called before an exchange; again before the same one if the members change meanwhile."""
        # else members changed before a bucket started, and the same exchange begins again
        if self._used:
            self._used, self._count = False, self._count + 1
            if self._due:
                self._restart()
        self._begin_exchange()
        if self._due:
            self.engine.prepare()

    def _begin_exchange(self) -> None:
        """Begin a new window in a new view; see whether the exchange is the last of its window."""
        if self._now() != self._generation:
            self._restart()
            self._generation = self._now()
        self._due = self._count + 1 == self.every
        self._before = float(self._ratio)

    def _restart(self) -> None:
        self._count = 0
        for one in (*self._own, *self._applied, self._sums):
            one.zero_()

    def adapt(self, aggregator: PayloadAggregator) -> None:
        """Before a bucket starts: let the codec send as much as the last finding asked for."""
        ratio = float(self._ratio)
        # only sparsifiers have a ratio, and their payloads are gathered
        if ratio and isinstance(aggregator, GatherAggregator) and aggregator.codec.get_ratio() != ratio:
            aggregator.codec = aggregator.codec.with_ratio(ratio)

    def judge(self, finding: GuardFinding) -> GuardTightened:
        """After the last bucket: keep the codec, or have it send more from the next step on."""
        facts = (finding.cosine, self.budget, finding.steps)
        ratio = float(self._ratio)
        if finding.cosine >= self.budget:
            return GuardTightened(*facts, "kept", ratio or None)
        # 0: a dense codec, which has no ratio; 1: everything is sent already
        if not 0.0 < ratio < 1.0:
            return GuardTightened(*facts, "outside", ratio or None)
        self._ratio.fill_(min(1.0, 2 * ratio))
        return GuardTightened(*facts, "tightened", float(self._ratio))

    def state(self) -> State:
        """Return how far it has tightened, for a checkpoint."""
        return {"guard.ratio": self._ratio}

    def started(self, index: int, values: Tensor) -> int:
        """Add what this worker offers of bucket `index`; return the bytes put on sockets for its uncoded sum."""
        self._used = True
        self._open.add(index)
        self._own[index] += values
        if not self._due:
            return 0
        self._pairs[index][0].copy_(self._own[index])
        self.engine.start(index)
        return self.engine.wire_bytes(index)

    def finished(self, index: int, total: Tensor) -> GuardFinding | None:
        """Add the sum that all workers got; return a finding with the last bucket of every k-th exchange."""
        if index not in self._open:
            return None
        if self._due:
            self.engine.finish(index)
        self._open.discard(index)
        applied = self._applied[index].add_(total)
        if not self._due:
            return None
        # double: the sums of many buckets must round alike on all workers
        one, other = applied.double(), self._pairs[index][1].double()
        self._sums += torch.stack([torch.dot(one, other), torch.dot(one, one), torch.dot(other, other)])
        return None if self._open else self._find()

    def _find(self) -> GuardFinding:
        both, one, other = self._sums.tolist()
        norms = math.sqrt(one) * math.sqrt(other)
        # nothing applied where there was nothing is right; nothing where there was something is not
        cosine = both / norms if norms > 0 else float(one == other)
        return GuardFinding(round(cosine, DIGITS), self.every)

    @property
    def retryable(self) -> bool:
        return self.engine.retryable

    def is_complete(self) -> bool:
        return not self._due or self.engine.is_complete()

    def retry(self, values: Mapping[int, Tensor]) -> None:
        """Begin a window with this exchange, which other members make, and undo what was found in it."""
        again = self._due
        self._ratio.fill_(self._before)
        self._begin_exchange()
        for index, offered in values.items():
            self._own[index].copy_(offered)
        self._open = set(values)
        if self._due:  # a window of one exchange: its uncoded sum is made again
            self.engine.retry()
        # the sum of a window that does not count any more
        elif again:
            self.engine.abandon()

    def finish_locally(self) -> None:
        if self._due:
            self.engine.finish_locally()
