"""A bucket cut into one share for each worker, its owner: where each lies, and what it is made of.

    coded layers, side by side    |  share 0  |  share 1  |  share 2  |
    layers that travel as they are|  share 0  |  share 1  |  share 2  |

Shares begin anywhere in a layer, at multiples of 16 elements; a layer that is cut lies in several of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from shoal.wire.layout import Layout, Part

STEP = 16
"""Elements: codes of any width begin at a byte."""


@dataclass(frozen=True)
class Share:
    """One owner's part of a bucket."""

    coded: slice
    """Of the coded layers side by side."""
    plain: slice
    """Of the others side by side."""
    layout: Layout
    """Of the coded slice: pieces of layers as matrices of one row."""

    @property
    def plain_layout(self) -> Layout:
        return Layout.flat(self.plain.stop - self.plain.start, "plain")


def shares(coded: Layout, plain: Layout, workers: int) -> list[Share]:
    """One for each worker, in order of rank; some are empty if there is little."""
    cuts = zip(_cuts(coded.numel, workers), _cuts(plain.numel, workers), strict=True)
    return [Share(one, other, _within(coded.parts, one)) for one, other in cuts]


def _cuts(numel: int, workers: int) -> list[slice]:
    edges = [min(numel, -(-numel * number // workers // STEP) * STEP) for number in range(workers)] + [numel]
    return [slice(start, end) for start, end in pairwise(edges)]


def _within(parts: Sequence[Part], cut: slice) -> Layout:
    found = []
    for part in parts:
        length = min(part.end, cut.stop) - max(part.offset, cut.start)
        if length > 0:
            found.append((part.name, (1, length)))
    return Layout.of(found)
