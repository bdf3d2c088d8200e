"""A small line chart in braille dots (2 by 4 to a character), or in stars where only ASCII is at hand."""

from itertools import pairwise
from math import isfinite

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from shoal.watch.figures import value
from shoal.watch.series import Points

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bit of each dot of a braille character, by row and column."""


MARGIN = 13
"""Room for the longest label, `-1.234e-100`, and the axis."""


class BrailleCurve:
    """Draws `points` as wide as the console, up to `widest`; what is not finite is counted, not drawn."""

    def __init__(self, points: Points, height: int = 8, widest: int = 100) -> None:
        self.points = [(step, number) for step, number in points if isfinite(number)]
        self.lost = len(points) - len(self.points)
        self.height = height
        self.widest = widest

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.points:
            yield from self._chart(min(options.max_width, self.widest), options.ascii_only)
        if self.lost:
            known = len(self.points) + self.lost
            yield Text(f"not drawn: {self.lost} of {known} steps, their value is not finite")

    def _chart(self, width: int, ascii_only: bool) -> RenderResult:
        plot = max(4, width - MARGIN)
        # Two dots lie beside each other in a braille character.
        drawn = columns(self.points, 2 * plot)
        labels = [value(max(drawn)), *[""] * (self.height - 2), value(min(drawn))]
        for label, row in zip(labels, raster(drawn, plot, self.height), strict=True):
            line = "".join(_letter(cell, ascii_only) for cell in row)
            yield Text(f"{label:>{MARGIN - 2}} |{line}".rstrip())
        first, last = self.points[0][0], self.points[-1][0]
        yield Text(f"{' ' * MARGIN}step {first}{last:>{max(1, plot - 5 - len(str(first)))}}")


def columns(points: Points, width: int) -> list[float]:
    """One number per column: the mean of the points that fall there, straight lines over empty columns."""
    first, span = points[0][0], max(1, points[-1][0] - points[0][0])
    buckets: dict[int, list[float]] = {}
    for step, number in points:
        # Width - 1, so that the last step falls into the last column and not behind it.
        buckets.setdefault((step - first) * (width - 1) // span, []).append(number)
    known = [(column, sum(number / len(found) for number in found)) for column, found in buckets.items()]
    drawn = [known[0][1]]
    for (left, low), (right, high) in pairwise(known):
        shares = [at / (right - left) for at in range(1, right - left + 1)]
        drawn += [low * (1 - share) + high * share for share in shares]
    return drawn


def raster(numbers: list[float], width: int, height: int) -> list[list[int]]:
    """Dots of each character cell as bits; neighbouring columns are joined by an upright line."""
    cells = [[0] * width for _ in range(height)]
    low, high = min(numbers), max(numbers)
    rows = [_row(number, low, high, 4 * height) for number in numbers]
    for column, (before, row) in enumerate(zip([rows[0], *rows], rows, strict=False)):
        step = 1 if row > before else -1
        for dot in (row, *range(before + step, row, step)):
            cells[dot // 4][column // 2] |= DOTS[dot % 4][column % 2]
    return cells


def _row(number: float, low: float, high: float, rows: int) -> int:
    # Halves first: the difference of two huge numbers of unlike sign would not be finite.
    half = high / 2 - low / 2
    return round((high / 2 - number / 2) / half * (rows - 1)) if half else rows // 2


def _letter(cell: int, ascii_only: bool) -> str:
    if not cell:
        return " "
    return "*" if ascii_only else chr(0x2800 + cell)
