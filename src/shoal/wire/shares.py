"""How many elements travel of a tensor, or of each of its layers, and how large a sample tells which.

As in Lin et al. (DGC, section 3) a sample suggests the threshold; here a little too low, for too many can be cut.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shoal.wire.kernels.ranks import LINE
from shoal.wire.kernels.select import PIECE
from shoal.wire.layout import FlatLayout, Table

SLACK = 1.25
"""Of the number wanted, what a payload has room for."""
SURE = 3.0
"""Standard deviations by which a sample's threshold is taken too low: one in a thousand is too high."""


def most(wanted: int, numel: int) -> int:
    return min(numel, int(wanted * SLACK) + 1)


def wanted(ratio: float, numel: int) -> int:
    """At least one of something."""
    return min(numel, max(1, round(ratio * numel)))


@dataclass(frozen=True)
class ElementShares:
    """How many travel of which runs of elements, as the kernel wants it; made once."""

    rows: Table
    """Of each run (start, end, number wanted, stride of the sample's lines, rank in the sample)."""
    room: int
    """The most candidates there are at once, and elements of a sample."""
    most: int

    @classmethod
    def of(cls, ratio: float, runs: Iterable[tuple[int, int]]) -> "ElementShares":
        rows = [_row(start, end, wanted(ratio, end - start)) for start, end in runs if start < end]
        here = [max(2 * count + 8 * PIECE, 8 * math.isqrt(end - start) + LINE) for start, end, count, _, _ in rows]
        room = sum(row[2] for row in rows) + max(here, default=0)
        return cls(np.array(rows, np.int64).reshape(-1, 5), room, sum(most(row[2], row[1] - row[0]) for row in rows))


def _row(start: int, end: int, count: int) -> tuple[int, int, int, int, int]:
    """Four times the root of a run's elements make its sample: then reading it and what it lets pass cost alike.

    The stride is odd, or a matrix whose width is a power of two would be known by a few of its columns.
    """
    lines = (end - start) // LINE
    stride = max(0, lines // max(1, math.isqrt(end - start) // 4) - 1) | 1
    elements = lines // stride * LINE
    due = count * elements / (end - start)
    rank = math.ceil(due + SURE * math.sqrt(due)) + 2
    return start, end, count, stride, rank if rank < elements else 0


@lru_cache(maxsize=1024)
def by_layer(ratio: float, layout: FlatLayout) -> ElementShares:
    return ElementShares.of(ratio, [(part.offset, part.end) for part in layout.parts])


@lru_cache(maxsize=1024)
def of_all(ratio: float, layout: FlatLayout) -> ElementShares:
    return ElementShares.of(ratio, [(0, layout.numel)])
