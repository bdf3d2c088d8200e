"""Iterable-style datasets: every worker reads the whole stream and keeps its own part.

The stream must be the same on every worker, and each worker pays for reading all of it; what it draws from
the global generators, or from a `torch.Generator` it keeps as `generator`, is made the same. Where reading is
expensive, a map-style dataset is the better choice.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from shoal.core.seeds import mix
from shoal.data.alike import CommonReader
from shoal.data.allocate.leased import LeaseQueue
from shoal.data.allocate.static import StaticAllocator
from shoal.data.deal import counts, steps
from shoal.data.remaining import FRESH, Left, Ranges, RemainingSamples
from shoal.data.source.base import LoaderStep, WorkerPlace
from shoal.data.source.rebuild import like
from shoal.data.turn import PassKey

Share = tuple[int, Any, Ranges, int]
"""Samples of all workers in one step, this worker's batch of them, where they lie, and in whose stream."""


class StreamSource:
    """Deals the samples of a stream; each dataloader process groups its own stream, as without Shoal."""

    def __init__(self, loader: DataLoader[Any], place: WorkerPlace) -> None:
        self._loader = loader
        self._place = place
        self._generator = torch.Generator()
        self._portion = StreamPortion(loader, place)
        self._inner = like(
            loader,
            self._portion,
            generator=self._generator,
            # the portion groups and collates samples itself
            batch_size=None,
            collate_fn=_as_it_is,
            worker_init_fn=_WorkerInit(loader.worker_init_fn),
        )

    lease_batch = None
    """Every worker reads the whole stream: to take more of it would save nothing."""

    def steps(self, turn: PassKey, left: Left = FRESH, leases: LeaseQueue | None = None) -> Iterator[LoaderStep]:
        # Without the rank: what a dataset does with the seed of its process must be the same on every worker.
        self._generator.manual_seed(turn.mix("stream"))
        # in place: processes that live on read this memory
        self._portion.seed.fill_(turn.mix("stream"))
        self._portion.left = {(turn.mix("stream"), stream): rest for stream, rest in left.items()}
        return self._counted(iter(self._inner))

    def __len__(self) -> int:
        """A guess from the dataset's length if there are dataloader processes, as torch's own."""
        batch = self._loader.batch_size or 1
        dataset: Any = self._loader.dataset
        drop_last = self._loader.drop_last
        return steps(len(dataset), size=self._place.size, batch=batch, drop_last=drop_last)

    def _counted(self, shares: Iterator[Share]) -> Iterator[LoaderStep]:
        place = self._place
        for total, batch, ranges, stream in shares:
            yield LoaderStep(counts(total, place.size, place.shares), batch, ranges, stream)

    items = None

    @property
    def drops(self) -> int:
        """Every process that reads drops a remainder of its own."""
        loader = self._loader
        return self._place.size * (loader.batch_size or 1) * max(1, loader.num_workers) if loader.drop_last else 0

    def names(self, turn: PassKey, places: Iterable[int]) -> list[Any]:
        return []


class StreamPortion(IterableDataset[Share]):
    """One worker's part of a stream; lives in the dataloader's processes if there are any."""

    def __init__(self, loader: DataLoader[Any], place: WorkerPlace) -> None:
        self.dataset: Any = loader.dataset
        self.seed = torch.zeros((), dtype=torch.int64)
        self.left: dict[tuple[int, int], RemainingSamples] = {}
        """What remains, by seed of the turn and process: one that lives on must not think so of later turns."""
        if loader.persistent_workers:
            # A process that lives on has no other way to learn of a new turn; it looks when it starts one.
            self.seed.share_memory_()  # type: ignore[no-untyped-call]
        self._place = place
        self._batch = loader.batch_size
        self._drop_last = loader.drop_last
        self._collate = loader.collate_fn

    def __iter__(self) -> Iterator[Share]:
        info = get_worker_info()
        seed = int(self.seed)
        # The generators of a process differ, a generator of the dataset does not: torch copies it to all.
        stream = info.id if info else 0
        reader = CommonReader(self.dataset, mix("process", seed, stream), generator=seed)
        return self._shares(reader, self.left.get((seed, stream), RemainingSamples()), stream)

    def _shares(self, reader: CommonReader[Any], left: RemainingSamples, stream: int) -> Iterator[Share]:
        place = self._place
        allocator = StaticAllocator(
            place.rank, place.size, batch=self._batch or 1, drop_last=self._drop_last, shares=place.shares
        )
        for sizes, own, ranges, _ in allocator.allocate(reader.read, left):
            yield sum(sizes), self._collated(own) if own else None, ranges, stream

    def _collated(self, own: list[Any]) -> Any:
        return self._collate(own[0] if self._batch is None else own)


class _WorkerInit:
    """The user's `worker_init_fn`; it finds the user's own dataset in `get_worker_info()`."""

    def __init__(self, user: Callable[[int], None] | None) -> None:
        self._user = user

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        # It is frozen, but torch's docs let user code divide the work by changing its dataset here.
        object.__setattr__(info, "dataset", info.dataset.dataset)
        if self._user is not None:
            self._user(worker)


def _as_it_is(share: Share) -> Share:
    return share
