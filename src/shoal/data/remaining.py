"""The rest of one pass, as a value: the positions of its global order that no worker has used.

    0 1 2 3 4 5 6 7 8 9 10 11 …        position 8, returned 2–4 and 6
        ^^^     ^   ^----------->      in this order: 2 3 6, then 8 9 10 …

Everything before `position` was dealt, except what came back: the samples of a worker that was lost before its step
was committed. A pass that is continued, with any number of workers, deals exactly what remains.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from shoal.data.deal import Counts, Read

T = TypeVar("T")

Range = tuple[int, int]
"""Positions from the first up to, not including, the second."""
Ranges = tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class RemainingSamples:
    """The positions from `position` on, and the `returned` ones before it: sorted, apart from each other."""

    position: int = 0
    returned: Ranges = ()

    def take(self, number: int) -> tuple[Ranges, "RemainingSamples"]:
        """The next `number` positions, lowest first, and what remains without them."""
        taken: list[Range] = []
        kept: list[Range] = []
        for begin, end in self.returned:
            cut = min(end, begin + number)
            number -= cut - begin
            taken += [(begin, cut)] * (cut > begin)
            kept += [(cut, end)] * (end > cut)
        if number:
            taken.append((self.position, self.position + number))
        return joined(taken), RemainingSamples(self.position + number, tuple(kept))

    def give_back(self, ranges: Iterable[Range]) -> "RemainingSamples":
        """With positions that were dealt and not consumed; giving back what was not out is an error."""
        back = joined(sorted(ranges))
        for begin, end in back:
            if end > self.position or any(begin < b and a < end for a, b in self.returned):
                raise ValueError(f"positions {begin} to {end - 1} were not dealt, so they cannot come back")
        return _normal(self.position, joined(sorted((*self.returned, *back))))

    def take_out(self, ranges: Iterable[Range]) -> "RemainingSamples":
        """Without positions that another worker was dealt before this one; what is not here any more is passed over."""
        position, kept = self.position, list(self.returned)
        for begin, end in joined(sorted(ranges)):
            if end > position:
                # all up to there counts as dealt, and what lies between as returned
                kept.append((position, end))
                position = end
            kept = [part for a, b in kept for part in ((a, min(b, begin)), (max(a, end), b)) if part[0] < part[1]]
        return _normal(position, joined(sorted(kept)))

    def count(self, items: int) -> int:
        """How many positions remain of `items`."""
        return max(0, items - self.position) + sum(end - begin for begin, end in self.returned)

    def __contains__(self, place: int) -> bool:
        return place >= self.position or any(begin <= place < end for begin, end in self.returned)


def _normal(position: int, returned: Ranges) -> RemainingSamples:
    """Equal on all workers that have the same positions left, however they got there."""
    if returned and returned[-1][1] == position:
        return RemainingSamples(returned[-1][0], returned[:-1])
    return RemainingSamples(position, returned)


Left = Mapping[int, RemainingSamples]
"""The rest of each stream of a pass: one, or one for each process that reads an iterable dataset."""

FRESH: Left = {}


def joined(ranges: Iterable[Range]) -> Ranges:
    """Sorted ranges with neighbours made one."""
    result: list[Range] = []
    for begin, end in ranges:
        if begin == end:
            continue
        if result and result[-1][1] == begin:
            result[-1] = (result[-1][0], end)
        else:
            result.append((begin, end))
    return tuple(result)


def remaining_of(read: Read[T], left: RemainingSamples) -> Read[T]:
    """Reads what `read` gives at the positions that remain; what comes before them is read and dropped."""
    if left == RemainingSamples():
        return read
    head: list[T] | None = None

    def more(number: int) -> list[T]:
        nonlocal head
        if head is None:
            # an order may come from a generator, so what was dealt before has to be drawn again
            dealt = read(left.position)
            head = [item for begin, end in left.returned for item in dealt[begin:end]]
        part, head = head[:number], head[number:]
        return part + (read(number - len(part)) if len(part) < number else [])

    return more


def placed(
    read: Read[T], left: RemainingSamples, deal: Callable[[Read[T]], Iterator[tuple[Counts, T]]]
) -> Iterator[tuple[Counts, T, Ranges]]:
    """The steps that `deal` makes of what remains, each with the positions it takes."""
    rest, number = remaining_of(read, left), 0

    def counting(wanted: int) -> list[T]:
        nonlocal number
        items = rest(wanted)
        number += len(items)
        return items

    for sizes, own in deal(counting):
        ranges, left = left.take(number)
        number = 0
        yield sizes, own, ranges
