"""A guard of convergence: now and then, what was applied is held against what no codec would have lost.

    every exchange     own += this worker's gradient        applied += the decoded sum
    every k-th         true = sum of all workers' own       cosine(applied, true)        both begin anew

Over k steps, not one: with error feedback a step sends what earlier steps held back, so a single step is far from its
gradient though nothing is lost; after k steps what still waits is what is late. Without feedback noise of k steps
averages out, and a bias does not. Below the budget a sparsifier sends twice as much from the next step on, up to all;
of another codec it is only said. All workers hold the same bits of both, computed in double and rounded, so all come
to the same decision without a message. Costs four copies of the gradients, and one exchange without a codec in k.

A window belongs to one view: with the first exchange that other members make, however often they had to begin it, all
begin a new one. So do newcomers, who take over how far the others have tightened.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.sync.aggregate.base import PayloadAggregator
from shoal.sync.aggregate.gather import GatherAggregator
from shoal.sync.engine.base import ExchangeEngine
from shoal.sync.news import GuardTightened
from shoal.wire.bucket import BucketSpace
from shoal.wire.codec import State
from shoal.wire.layout import FlatLayout

DIGITS = 6


@dataclass(frozen=True)
class GuardFinding:
    """What the guard saw."""

    cosine: float
    steps: int
    """Exchanges it looked back on."""


class ConvergenceGuard:
    """Of one exchange. Buckets all start before the first is finished. `epoch`: the number of the view."""

    def __init__(
        self,
        budget: float,
        every: int,
        engine: ExchangeEngine,
        ratio: float | None,
        epoch: Callable[[], int] = lambda: 0,
    ) -> None:
        """`ratio`: what share of the elements the codec sends; None for one that says something of all."""
        self.budget, self.every, self.engine, self._now = budget, every, engine, epoch
        self._ratio = torch.tensor([ratio or 0.0], dtype=torch.float64)
        self._before = float(self._ratio)
        """The ratio as it was when the exchange began."""
        self._count = 0
        """Exchanges of the window, before the one under way."""
        self._epoch = -1
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
        """Before an exchange; once more before the same, if the members change meanwhile."""
        if self._used:
            self._used, self._count = False, self._count + 1
            if self._due:
                self._restart()
        self._look()
        if self._due:
            self.engine.prepare()

    def _look(self) -> None:
        """In which view the exchange begins, and whether it is the last of its window."""
        if self._now() != self._epoch:
            self._restart()
            self._epoch = self._now()
        self._due = self._count + 1 == self.every
        self._before = float(self._ratio)

    def _restart(self) -> None:
        self._count = 0
        for one in (*self._own, *self._applied, self._sums):
            one.zero_()

    def adapt(self, meeting: PayloadAggregator) -> None:
        """Before a bucket starts: let the codec send as much as was found to be needed."""
        ratio = float(self._ratio)
        if ratio and isinstance(meeting, GatherAggregator) and meeting.codec.get_ratio() != ratio:
            meeting.codec = meeting.codec.with_ratio(ratio)

    def judge(self, finding: GuardFinding) -> GuardTightened:
        """When the last bucket is finished: keep the codec, or have it send more from the next step on."""
        facts = (finding.cosine, self.budget, finding.steps)
        ratio = float(self._ratio)
        if finding.cosine >= self.budget:
            return GuardTightened(*facts, "kept", ratio or None)
        if not 0.0 < ratio < 1.0:
            return GuardTightened(*facts, "outside", ratio or None)
        self._ratio.fill_(min(1.0, 2 * ratio))
        return GuardTightened(*facts, "tightened", float(self._ratio))

    def state(self) -> State:
        """How far it has tightened, for a checkpoint."""
        return {"guard.ratio": self._ratio}

    def started(self, index: int, values: Tensor) -> int:
        """This worker offers `values` of bucket `index`; returns bytes put on sockets for the shadow of it."""
        self._used = True
        self._open.add(index)
        self._own[index] += values
        if not self._due:
            return 0
        self._pairs[index][0].copy_(self._own[index])
        self.engine.start(index)
        return self.engine.wire(index)

    def finished(self, index: int, total: Tensor) -> GuardFinding | None:
        """All workers got `total`; a finding with the last bucket of every k-th exchange."""
        if index not in self._open:
            return None
        if self._due:
            self.engine.finish(index)
        self._open.discard(index)
        applied = self._applied[index].add_(total)
        if not self._due:
            return None
        one, other = applied.double(), self._pairs[index][1].double()
        self._sums += torch.stack([torch.dot(one, other), torch.dot(one, one), torch.dot(other, other)])
        return None if self._open else self._found()

    def _found(self) -> GuardFinding:
        both, one, other = self._sums.tolist()
        norms = math.sqrt(one) * math.sqrt(other)
        # nothing applied where there was nothing is right; nothing where there was something is not
        cosine = both / norms if norms > 0 else float(one == other)
        return GuardFinding(round(cosine, DIGITS), self.every)

    @property
    def repeatable(self) -> bool:
        return self.engine.repeatable

    def whole(self) -> bool:
        return not self._due or self.engine.whole()

    def repeat(self, values: Mapping[int, Tensor]) -> None:
        """Other members make this exchange: a window begins with it, and what was found of it is forgotten."""
        again = self._due
        self._ratio.fill_(self._before)
        self._look()
        for index, offered in values.items():
            self._own[index].copy_(offered)
        self._open = set(values)
        if self._due:  # a window of one exchange: its shadow is what it was
            self.engine.repeat()
        elif again:
            self.engine.forget()

    def recover(self) -> None:
        if self._due:
            self.engine.recover()
