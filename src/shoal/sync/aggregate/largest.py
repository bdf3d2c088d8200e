"""The largest gradients travel first, under a budget of bytes: `order(largest, budget=1mb)`.

    bucket full      added to its residual; nothing leaves yet
    all are full     of all buckets together, the pieces of largest magnitude that fit the budget leave
    the rest         stays, and is added to the gradients of the next step: sent + residual = all there was

Wei et al. 2015 (wire/codecs/largest.py) do so in the background of a bounded-stale server; here replicas stay equal,
because every worker's pieces are gathered and added up by all. Do not use it where the backward pass could hide the
transfer: nothing leaves before it has ended.
"""

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from shoal.sync.aggregate.gather import NON_FINITE, NOTHING, GatherAggregator, prefix_of
from shoal.sync.engine.base import PayloadEngine
from shoal.wire.codec import refuse_non_finite
from shoal.wire.codecs.largest import LargestCodec, Weights, choose, weigh, within
from shoal.wire.wrappers.feedback import RESIDUAL, ErrorFeedback


class LargestAggregator(GatherAggregator):
    """Sends at most `budget` bytes of this worker in each exchange."""

    def __init__(self, budget: int, engine: PayloadEngine, rank: int, seed: int) -> None:
        self._largest = LargestCodec(budget)
        super().__init__(ErrorFeedback(self._largest), engine, rank, seed)
        self._full: dict[int, Sequence[bool]] = {}
        """Full buckets of which nothing has been sent in this exchange, and which layers they have."""
        self._non_finite: set[int] = set()
        """Those of them whose numbers are not finite."""

    def start(self, index: int, values: Tensor, present: Sequence[bool]) -> None:
        layout, left = self._layouts[index], self._states[index][RESIDUAL]
        refuse_non_finite(values, layout)
        for part, here in zip(layout.parts, present, strict=True):
            if here:
                left[part.offset : part.end] += values[part.offset : part.end]
        self._full[index] = list(present)

    def start_non_finite(self, index: int) -> None:
        self._full[index] = [False] * len(self._layouts[index].parts)
        self._non_finite.add(index)

    def all_started(self) -> None:
        full = dict(self._full)
        layouts = [self._layouts[index] for index in full]
        # prefixes leave whatever is chosen
        budget = self._largest.budget - sum(map(prefix_of, layouts))
        chosen = choose([self._weigh(*one) for one in full.items()], layouts, budget) if full else []
        for (index, present), layout, pieces in zip(full.items(), layouts, chosen, strict=True):
            left = self._states[index][RESIDUAL]
            otherwise = NON_FINITE if index in self._non_finite else NOTHING
            self._post(index, present, partial(self._largest.write, pieces, left, layout, clear=True), otherwise)
            del self._full[index]
        self._non_finite.clear()

    def _weigh(self, index: int, present: Sequence[bool]) -> Weights:
        """Return the magnitudes of pieces; layers this worker lacks keep their residual: nobody would use it."""
        layout = self._layouts[index]
        weights = weigh(self._states[index][RESIDUAL], layout)
        for part, here in zip(layout.parts, present, strict=True):
            if not here:
                # below every magnitude, so they are never chosen
                weights[within(part, layout)] = -1.0
        return weights

    def is_complete(self) -> bool:
        return not self._full and super().is_complete()
