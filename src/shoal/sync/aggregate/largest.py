"""What matters most travels first, under a budget of bytes: `order(largest, budget=1mb)`.

    bucket full      added to what was left of it          nothing leaves yet
    all are full     of all buckets together, the pieces of largest magnitude that the budget holds leave
    the rest         stays, and is added to what comes in the next step: sent + left = all there was

Wei et al. 2015 (wire/codecs/largest.py) do so in the background of a bounded-stale server; here replicas stay equal,
for every worker's pieces are gathered and added up by all. Do not use it where the backward pass could hide the
transfer: nothing leaves before it has ended.
"""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from shoal.sync.aggregate.gather import NOTHING, SPOILED, GatherAggregator, prefix_of
from shoal.sync.engine.base import ExchangeEngine
from shoal.wire.codec import refuse_non_finite
from shoal.wire.codecs.largest import LargestCodec, Weights, choose, weigh, within
from shoal.wire.wrappers.feedback import RESIDUAL, ErrorFeedback


class LargestAggregator(GatherAggregator):
    """At most `budget` bytes of this worker in each exchange."""

    def __init__(self, budget: int, engine: ExchangeEngine, rank: int, seed: int) -> None:
        self._largest = LargestCodec(budget)
        super().__init__(ErrorFeedback(self._largest), engine, rank, seed)
        self._full: dict[int, Sequence[bool]] = {}
        """Buckets that nothing has left of yet in this exchange, and which layers they have."""
        self._spoiled: set[int] = set()
        """Those of them that hold nothing finite."""

    def start(self, index: int, values: Tensor, present: Sequence[bool]) -> None:
        layout, left = self._layouts[index], self._states[index][RESIDUAL]
        refuse_non_finite(values, layout)
        for part, here in zip(layout.parts, present, strict=True):
            if here:
                left[part.offset : part.end] += values[part.offset : part.end]
        self._full[index] = list(present)

    def spoil(self, index: int) -> None:
        self._full[index] = [False] * len(self._layouts[index].parts)
        self._spoiled.add(index)

    def launched(self) -> None:
        full = dict(self._full)
        layouts = [self._layouts[index] for index in full]
        budget = self._largest.budget - sum(map(prefix_of, layouts))
        chosen = choose([self._weigh(*one) for one in full.items()], layouts, budget) if full else []
        for (index, present), layout, pieces in zip(full.items(), layouts, chosen, strict=True):
            left = self._states[index][RESIDUAL]
            otherwise = SPOILED if index in self._spoiled else NOTHING
            self._post(index, present, partial(self._largest.write, pieces, left, layout, clear=True), otherwise)
            del self._full[index]
        self._spoiled.clear()

    def _weigh(self, index: int, present: Sequence[bool]) -> Weights:
        """Layers this worker does not have keep what is left of them: nobody would use it."""
        layout = self._layouts[index]
        weights = weigh(self._states[index][RESIDUAL], layout)
        for part, here in zip(layout.parts, present, strict=True):
            if not here:
                weights[within(part, layout)] = -1.0
        return weights

    def whole(self) -> bool:
        return not self._full and super().whole()
