"""A guard of convergence: now and then, what was applied is held against what no codec would have lost.

    every exchange     own += this worker's gradient        applied += the decoded sum
    every k-th         true = sum of all workers' own       cosine(applied, true)        both begin anew

Over k steps, not one: with error feedback a step sends what earlier steps held back, so a single step is far from its
gradient though nothing is lost; after k steps what still waits is what is late. Without feedback noise of k steps
averages out, and a bias does not. Below the budget a sparsifier sends twice as much from the next step on, up to all;
of another codec it is only said. All workers hold the same bits of both, computed in double and rounded, so all come
to the same decision without a message. Costs four copies of the gradients, and one exchange without a codec in k.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.sync.engine.base import Engine
from shoal.sync.meet.base import Meeting
from shoal.sync.meet.gather import GatherMeeting
from shoal.sync.news import Tightened
from shoal.wire.bucket import Space
from shoal.wire.codec import State
from shoal.wire.layout import Layout
from shoal.wire.tighten import ratio_of, with_ratio

DIGITS = 6


@dataclass(frozen=True)
class Finding:
    """What the guard saw."""

    cosine: float
    steps: int
    """Exchanges it looked back on."""


class Guard:
    """Of one exchange. Buckets all start before the first is finished."""

    def __init__(self, budget: float, every: int, engine: Engine, ratio: float | None) -> None:
        """`ratio`: what share of the elements the codec sends; None for one that says something of all."""
        self.budget, self.every, self.engine = budget, every, engine
        self._ratio = torch.tensor([ratio or 0.0], dtype=torch.float64)
        self._count = 0
        self._open: set[int] = set()
        self._due = False

    def open(self, layouts: Sequence[Layout]) -> None:
        cpu = torch.device("cpu")
        self._pairs = self.engine.open([Space(layout.numel, torch.float32, cpu) for layout in layouts])
        self._own = [torch.zeros(layout.numel) for layout in layouts]
        self._applied = [torch.zeros(layout.numel) for layout in layouts]
        self._sums = torch.zeros(3, dtype=torch.float64)

    def adapt(self, meeting: Meeting) -> None:
        """Before a bucket starts: let the codec send as much as was found to be needed."""
        ratio = float(self._ratio)
        if ratio and isinstance(meeting, GatherMeeting) and ratio_of(meeting.codec) != ratio:
            meeting.codec = with_ratio(meeting.codec, ratio)

    def judge(self, finding: Finding) -> Tightened:
        """When the last bucket is finished: keep the codec, or have it send more from the next step on."""
        facts = (finding.cosine, self.budget, finding.steps)
        ratio = float(self._ratio)
        if finding.cosine >= self.budget:
            return Tightened(*facts, "kept", ratio or None)
        if not 0.0 < ratio < 1.0:
            return Tightened(*facts, "outside", ratio or None)
        self._ratio.fill_(min(1.0, 2 * ratio))
        return Tightened(*facts, "tightened", float(self._ratio))

    def state(self) -> State:
        """How far it has tightened, for a checkpoint."""
        return {"guard.ratio": self._ratio}

    def started(self, index: int, values: Tensor) -> int:
        """This worker offers `values` of bucket `index`; returns bytes put on sockets for the shadow of it."""
        if not self._open:
            self._count += 1
            self._due = self._count % self.every == 0
            if self._due:
                self.engine.prepare()
        self._open.add(index)
        self._own[index] += values
        if not self._due:
            return 0
        self._pairs[index][0].copy_(self._own[index])
        self.engine.start(index)
        return self.engine.wire(index)

    def finished(self, index: int, total: Tensor) -> Finding | None:
        """All workers got `total`; a finding with the last bucket of every k-th exchange."""
        if index not in self._open:
            return None
        self._open.discard(index)
        applied = self._applied[index].add_(total)
        if not self._due:
            return None
        self.engine.finish(index)
        one, other = applied.double(), self._pairs[index][1].double()
        self._sums += torch.stack([torch.dot(one, other), torch.dot(one, one), torch.dot(other, other)])
        applied.zero_()
        self._own[index].zero_()
        return None if self._open else self._found()

    def _found(self) -> Finding:
        both, one, other = self._sums.tolist()
        self._sums.zero_()
        norms = math.sqrt(one) * math.sqrt(other)
        # nothing applied where there was nothing is right; nothing where there was something is not
        cosine = both / norms if norms > 0 else float(one == other)
        return Finding(round(cosine, DIGITS), self.every)
