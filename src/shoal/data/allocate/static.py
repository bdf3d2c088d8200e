"""Static allocation: a pure function of rank, workers and shares, so no message is needed.

Cannot follow a worker that gets slower in the middle of a round; `leased` can.
"""

from collections.abc import Callable, Iterator
from typing import Any

from shoal.data.allocate.base import AllocatedBatch
from shoal.data.deal import Counts, Read, Shares, by_batch, by_sample
from shoal.data.remaining import RemainingSamples, placed


class StaticAllocator:
    """Deals samples, `batch` for each worker on average; or, with `batch` None, whole items of a given `weight`."""

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        batch: int | None,
        drop_last: bool = False,
        shares: Shares = (),
        weight: Callable[[Any], int] = lambda item: 1,
    ) -> None:
        self.rank, self.size, self.batch, self.drop_last = rank, size, batch, drop_last
        self.shares, self.weight = shares, weight

    def allocate(self, read: Read[Any], left: RemainingSamples) -> Iterator[AllocatedBatch]:
        return (AllocatedBatch(*batch) for batch in placed(read, left, self._deal))

    def _deal(self, read: Read[Any]) -> Iterator[tuple[Counts, Any]]:
        if self.batch is None:
            return by_batch(read, rank=self.rank, size=self.size, weight=self.weight)
        return by_sample(
            read, rank=self.rank, size=self.size, batch=self.batch, drop_last=self.drop_last, shares=self.shares
        )
