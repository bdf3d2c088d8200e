"""Dealing samples to workers: pure arithmetic, the same on every worker, so that no message is needed.

Four workers with batch 2, eleven samples in global order; a group is what one worker with batch 8 would take:

    equal shares     group 0   0 1 | 2 3 | 4 5 | 6 7        two each
                     group 1   8   | 9   | 10  | -          the remainder, as evenly as possible; worker 3 has none
    shares 4,2,1,1   group 0   0 1 2 3 | 4 5 | 6 | 7        the group is the same, only its borders move
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")

Counts = tuple[int, ...]
"""Samples of every worker in one step, by rank."""
Read = Callable[[int], list[T]]
"""Gives the next samples in global order: as many as asked for, fewer only at the end."""


Shares = tuple[int, ...]
"""How much of every group each worker takes, by rank, in any unit; empty: all the same."""


# nearly all steps of a pass ask for the same counts
@lru_cache(maxsize=1024)
def counts(total: int, workers: int, shares: Shares = ()) -> Counts:
    """How many of `total` samples each worker gets, by largest remainder; lower ranks get the extra one.

    Nobody is left without a sample where there is one for everybody: a worker that sits a step out has to take over
    the others' state afterwards, which costs more than a sample.
    """
    if not shares:
        each, extra = divmod(total, workers)
        return (each + 1,) * extra + (each,) * (workers - extra)
    if total < workers:
        return counts(total, workers)
    whole = sum(shares)
    floor = [max(1, total * share // whole) for share in shares]
    remainder = [total * share % whole if total * share >= whole else 0 for share in shares]
    # ties by rank: every worker must deal alike
    by_remainder = sorted(range(workers), key=lambda rank: (-remainder[rank], rank))
    for rank in by_remainder[: max(0, total - sum(floor))]:
        floor[rank] += 1
    while sum(floor) > total:  # those who were given their one sample take it from the largest
        floor[floor.index(max(floor))] -= 1
    return tuple(floor)


def part(sizes: Counts, rank: int) -> slice:
    """Return the positions of `rank`'s samples in a group that is cut into `sizes`."""
    start = sum(sizes[:rank])
    return slice(start, start + sizes[rank])


def deal(group: Sequence[T], workers: int, shares: Shares = ()) -> list[Sequence[T]]:
    """Consecutive slices of one group, one per worker."""
    sizes = counts(len(group), workers, shares)
    return [group[part(sizes, rank)] for rank in range(workers)]


def groups(read: Read[T], size: int, *, drop_last: bool) -> Iterator[list[T]]:
    """Yield groups of `size` items; a short last group is yielded or dropped."""
    while group := read(size):
        short = len(group) < size
        if not (short and drop_last):
            yield group
        # `read` gives fewer only at the end
        if short:
            return


def by_sample(
    read: Read[T], *, rank: int, size: int, batch: int, drop_last: bool, shares: Shares = ()
) -> Iterator[tuple[Counts, list[T]]]:
    """Steps of `size * batch` samples: the counts, and the samples of `rank`."""
    for group in groups(read, size * batch, drop_last=drop_last):
        sizes = counts(len(group), size, shares)
        yield sizes, group[part(sizes, rank)]


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
