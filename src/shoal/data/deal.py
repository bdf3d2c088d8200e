"""Dealing: pure arithmetic, the same on every worker, so that nobody has to ask anybody.

Four workers with batch 2, eleven samples in global order; a group is what one worker with batch 8 would take:

    group 0   0 1 | 2 3 | 4 5 | 6 7        a full group: two each
    group 1   8   | 9   | 10  | -          the remainder, as evenly as possible; worker 3 has none
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")

Counts = tuple[int, ...]
"""Samples of every worker in one step, by rank."""
Read = Callable[[int], list[T]]
"""Gives the next samples in global order: as many as asked for, fewer only at the end."""


@lru_cache(maxsize=1024)
def counts(total: int, workers: int) -> Counts:
    """How many of `total` samples each worker gets; lower ranks get the extra one."""
    each, extra = divmod(total, workers)
    return (each + 1,) * extra + (each,) * (workers - extra)


@lru_cache(maxsize=1024)
def part(total: int, workers: int, rank: int) -> slice:
    """Where the samples of `rank` lie within a group of `total`."""
    each, extra = divmod(total, workers)
    start = rank * each + min(rank, extra)
    return slice(start, start + each + (rank < extra))


def deal(group: Sequence[T], workers: int) -> list[Sequence[T]]:
    """Consecutive slices of one group, one per worker."""
    return [group[part(len(group), workers, rank)] for rank in range(workers)]


def groups(read: Read[T], size: int, *, drop_last: bool) -> Iterator[list[T]]:
    """What is read, `size` at a time; a short group is the last one, or dropped."""
    while group := read(size):
        short = len(group) < size
        if not (short and drop_last):
            yield group
        if short:
            return


def by_sample(read: Read[T], *, rank: int, size: int, batch: int, drop_last: bool) -> Iterator[tuple[Counts, list[T]]]:
    """Steps of `size * batch` samples: the counts, and the samples of `rank`."""
    for group in groups(read, size * batch, drop_last=drop_last):
        yield counts(len(group), size), group[part(len(group), size, rank)]


def by_batch(read: Read[T], *, rank: int, size: int, weight: Callable[[T], int]) -> Iterator[tuple[Counts, T | None]]:
    """Steps of one whole batch per worker; `weight` says how many samples a batch holds."""
    for group in groups(read, size, drop_last=False):
        sizes = (*map(weight, group), *(0,) * (size - len(group)))
        if any(sizes):
            yield sizes, group[rank] if sizes[rank] else None


def steps(total: int, *, size: int, batch: int, drop_last: bool) -> int:
    """Steps of a pass over `total` samples, the same for every worker: schedules are computed from it."""
    full, rest = divmod(total, size * batch)
    return full + (not drop_last and rest > 0)
