"""Any other iterable: its items are whole batches, dealt one to each worker.

Every worker goes through all items, so this is for lists and cheap generators; expensive ones belong into a
`DataLoader`. Nothing is known about the size of an item, so all weigh the same.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from shoal.data.alike import CommonReader, reading
from shoal.data.allocate.leased import LeaseQueue
from shoal.data.allocate.static import StaticAllocator
from shoal.data.deal import Read, steps
from shoal.data.remaining import FRESH, Left, RemainingSamples
from shoal.data.source.base import LoaderStep, WorkerPlace
from shoal.data.turn import PassKey


class IterableSource:
    """Deals the items of `items`, read alike on every worker."""

    def __init__(self, items: Iterable[Any], place: WorkerPlace) -> None:
        self._items = items
        self._place = place

    def steps(self, turn: PassKey, left: Left = FRESH, leases: LeaseQueue | None = None) -> Iterator[LoaderStep]:
        allocator = StaticAllocator(self._place.rank, self._place.size, batch=None)
        dealt = allocator.allocate(self._read(turn), left.get(0, RemainingSamples()))
        return (LoaderStep(batch.counts, batch.items, batch.ranges, whole_batches=True) for batch in dealt)

    lease_batch = None

    @property
    def items(self) -> int | None:
        return len(self._items) if isinstance(self._items, list | tuple) else None

    drops = 0

    def names(self, turn: PassKey, places: Iterable[int]) -> list[Any]:
        return []

    def _read(self, turn: PassKey) -> Read[Any]:
        if isinstance(self._items, list | tuple):
            return reading(self._items)  # it draws nothing, so nothing has to be borrowed for it
        return CommonReader(self._items, turn.mix("batches")).read

    def __len__(self) -> int:
        items: Any = self._items
        return steps(len(items), size=self._place.size, batch=1, drop_last=False)
