"""Sums over steps in at most `MOST` blocks, however many steps there are.

width 1:  | 0 | 1 | 2 | … | 511 |          step 512 comes: neighbours are added up
width 2:  | 0+1 | 2+3 | … |                so the whole run is always there, and memory does not grow
"""

from array import array
from collections.abc import Sequence
from math import isfinite

import numpy
from numpy.typing import NDArray

MOST = 512


class StepBlocks:
    """Columns of sums by block of steps; adding is cheap, so that it can follow a run."""

    def __init__(self, columns: int, most: int = MOST) -> None:
        self.width, self.most = 1, most
        self.weights = array("d")
        """How many steps each block has seen; 0 for one that nothing was told of."""
        self.sums = [array("d") for _ in range(columns)]

    def add(self, step: int, weight: float, values: Sequence[float]) -> None:
        """`values` are sums over `weight` steps that begin with `step`."""
        block = self._block(step)
        self.weights[block] += weight
        for column, value in zip(self.sums, values, strict=True):
            column[block] += value

    def _block(self, step: int) -> int:
        while step // self.width >= self.most:
            self.widen()
        block = step // self.width
        if (missing := block + 1 - len(self.weights)) > 0:
            for column in (self.weights, *self.sums):
                column.extend([0.0] * missing)
        return block

    def widen(self) -> None:
        """Make blocks twice as wide."""
        self.width *= 2
        self.weights = _pairs(self.weights)
        self.sums = [_pairs(column) for column in self.sums]

    def means(self, column: int) -> list[float | None]:
        """Mean per step of each block; None where nothing is known, or it is no number."""
        pairs = zip(self.sums[column], self.weights, strict=True)
        return [rounded(total / weight) if weight else None for total, weight in pairs]

    def steps(self) -> list[int]:
        """The first step of each block."""
        return [block * self.width for block in range(len(self.weights))]


def _pairs(column: "array[float]") -> "array[float]":
    padded = column if len(column) % 2 == 0 else array("d", [*column, 0.0])
    return array("d", (a + b for a, b in zip(padded[::2], padded[1::2], strict=True)))


def totals(blocks: Sequence[StepBlocks], column: int, most: int = MOST) -> tuple[int, list[float]]:
    """The sum over several workers up to the end of each block, with the width of the widest.

    A block that was not read, because the file is large, counts as much a step as the one before it.
    """
    width = max((each.width for each in blocks), default=1)
    sums = numpy.zeros(most)
    for each in blocks:
        found = _with_gaps_filled(each, column)
        # Widths are powers of two, so narrow blocks fall into wide ones as a whole.
        places = numpy.arange(len(found)) * each.width // width
        sums += numpy.bincount(places, found, most)
    # Without the empty blocks behind the last step.
    last = max((len(each.weights) * each.width for each in blocks), default=0)
    return width, list(numpy.cumsum(sums[: -(-last // width)]).tolist())


def _with_gaps_filled(blocks: StepBlocks, column: int) -> NDArray[numpy.float64]:
    """The sum of each block; one without steps has the mean of the last one that has."""
    found, weights = numpy.array(blocks.sums[column]), numpy.array(blocks.weights)
    seen = weights > 0
    if seen.all():
        return found
    before = numpy.maximum.accumulate(numpy.where(seen, numpy.arange(len(found)), -1))
    means = numpy.divide(found, weights, out=numpy.zeros_like(found), where=seen)
    filled = numpy.where(before >= 0, means[before], 0.0) * blocks.width
    return numpy.where(seen, found, filled)


def rounded(number: float) -> float | None:
    """For JSON: six digits are enough to draw, and JSON knows no nan."""
    return float(f"{number:.6g}") if isfinite(number) else None
