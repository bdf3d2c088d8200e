"""Map-style datasets: indices are dealt, and each worker loads its own samples only.

user's sampler ── groups ──┬── this worker's indices ── DataLoader, or data servers ──┬── steps
                           └── counts of every worker ────────────────────────────────┘
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from shoal.data.alike import read_sampler, reading
from shoal.data.allocate.base import AllocatedBatch, SampleAllocator
from shoal.data.allocate.leased import LeasedAllocator, LeaseQueue
from shoal.data.allocate.static import StaticAllocator
from shoal.data.deal import Read, steps
from shoal.data.order import order
from shoal.data.remaining import FRESH, Left, RemainingSamples
from shoal.data.source.base import LoaderStep, WorkerPlace
from shoal.data.source.rebuild import like
from shoal.data.turn import PassKey

PreparesBatches = Callable[[PassKey, Iterator[Any]], Iterator[Any]]
"""(pass, indices of one batch after the other, read ahead) -> the batches, in this order."""


class MapDatasetSource:
    """Deals the indices of the loader's sampler, or whole batches if it has a batch sampler or no batches."""

    def __init__(self, loader: DataLoader[Any], place: WorkerPlace, prepare: PreparesBatches | None = None) -> None:
        """`prepare`: what makes batches instead of a DataLoader like the user's."""
        self._prepare = prepare
        self._loader = loader
        self._place = place
        # DataLoader draws a seed in every pass: from this, or else from the script's own stream
        self._generator = torch.Generator()
        self._chosen = _ChosenIndices()
        role = {"batch_size": None, "sampler": self._chosen}
        if loader.batch_sampler is not None:
            role = {"batch_sampler": self._chosen}
        self._inner = like(loader, loader.dataset, generator=self._generator, collate_fn=loader.collate_fn, **role)

    def steps(self, turn: PassKey, left: Left = FRESH, leases: LeaseQueue | None = None) -> Iterator[LoaderStep]:
        rest = left.get(0, RemainingSamples())
        # torch derives the seeds of its worker processes from this generator: augmentation differs by rank, and the
        # rest of a pass does not repeat its beginning.
        self._generator.manual_seed(turn.mix("augment", self._place.rank, *([rest.position] * (rest.position > 0))))
        ahead: deque[AllocatedBatch] = deque()
        allocator: SampleAllocator = self._static()
        if leases is not None:
            allocator = LeasedAllocator(leases, self._place.rank, self._place.size)
        self._chosen.now = self._own(turn, rest, ahead, allocator)
        batches = iter(self._inner) if self._prepare is None else self._prepare(turn, self._chosen.now)
        return self._in_step(batches, ahead)

    @property
    def items(self) -> int | None:
        sampler = _sampler(self._loader)
        return len(sampler) if hasattr(sampler, "__len__") else None

    @property
    def drops(self) -> int:
        loader = self._loader
        return self._place.size * loader.batch_size if loader.drop_last and loader.batch_size else 0

    def names(self, turn: PassKey, places: Iterable[int]) -> list[Any]:
        sampler = _sampler(self._loader)
        if type(sampler) is SequentialSampler:
            return list(places)
        if _shuffles_all(sampler):
            whole = order(turn.seed, turn.epoch, turn.number, len(sampler))
            return [whole[place] for place in places]
        return []

    def __len__(self) -> int:
        batch = self._loader.batch_size or 1
        drop_last = self._loader.drop_last
        total = len(_sampler(self._loader))
        return steps(total, size=self._place.size, batch=batch, drop_last=drop_last)

    def _own(
        self, turn: PassKey, left: RemainingSamples, ahead: deque[AllocatedBatch], allocator: SampleAllocator
    ) -> Iterator[Any]:
        """Yield the positions to fetch; the counts queue up in `ahead`, because worker processes read ahead."""
        for allocated in allocator.allocate(_read(_sampler(self._loader), turn), left):
            # without its items: the inner loader has them
            ahead.append(allocated._replace(items=None))
            if allocated.counts[self._place.rank]:
                yield allocated.items

    def _static(self) -> StaticAllocator:
        place, loader = self._place, self._loader
        weight = len if loader.batch_sampler is not None else _weight
        return StaticAllocator(
            place.rank,
            place.size,
            batch=loader.batch_size,
            drop_last=loader.drop_last,
            shares=place.shares,
            weight=weight,
        )

    @property
    def lease_batch(self) -> int | None:
        return self._loader.batch_size if self.items is not None else None

    def _in_step(self, batches: Iterable[Any], ahead: deque[AllocatedBatch]) -> Iterator[LoaderStep]:
        rank = self._place.rank
        for batch in batches:
            # steps in which this worker has no sample have no batch in the inner loader
            while not ahead[0].counts[rank]:
                yield self._step(ahead.popleft(), None)
            yield self._step(ahead.popleft(), batch)
        # the last steps of a pass may have no sample for this worker
        for allocated in ahead:
            yield self._step(allocated, None)

    def _step(self, allocated: AllocatedBatch, batch: Any) -> LoaderStep:
        whole = self._loader.batch_size is None
        return LoaderStep(allocated.counts, batch, allocated.ranges, whole_batches=whole, lease=allocated.lease)


class _ChosenIndices:
    """The inner loader's sampler: it yields the positions chosen for the current turn."""

    now: Iterator[Any]

    def __iter__(self) -> Iterator[Any]:
        return self.now


def _sampler(loader: DataLoader[Any]) -> Any:
    """Whatever the user's loader takes its indices from: the batch sampler only if the user gave it."""
    given = loader.batch_size is None and loader.batch_sampler is not None
    return loader.batch_sampler if given else loader.sampler


def _read(sampler: Any, turn: PassKey) -> Read[Any]:
    if type(sampler) is SequentialSampler:
        return reading(range(len(sampler)))
    if _shuffles_all(sampler):
        return reading(order(turn.seed, turn.epoch, turn.number, len(sampler)))
    return read_sampler(sampler, turn.mix("sampler"))


def _shuffles_all(sampler: Any) -> bool:
    """Return whether the sampler is that of `shuffle=True`; with replacement, or another length, it is not."""
    # a subclass may draw in a way of its own
    plain = type(sampler) is RandomSampler and not sampler.replacement
    return plain and sampler.num_samples == len(sampler.data_source)


def _weight(index: Any) -> int:
    """Samples behind one index with `batch_size=None`: a list is a batch the dataset fetches at once."""
    return len(index) if isinstance(index, list) else 1
