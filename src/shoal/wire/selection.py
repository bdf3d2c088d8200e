"""Select the largest elements of a tensor, or of each of its layers, in one pass instead of a sort.

Lin et al. (DGC, section 3) let the k-th largest magnitude of a sample stand for the k-th largest of all. Here the
sample only says where the search begins: a little too low, so that exactly the k largest can be kept of what reaches
it. If it was too high after all, the kernel searches again without it. So the selection depends on the values alone: k
elements, the first of equal ones, or every element above the least normal float32 where those are fewer than k.
"""

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.wire import kernels
from shoal.wire.kernels.ranks import LINE
from shoal.wire.kernels.select import PIECE
from shoal.wire.layout import FlatLayout, Table

SLACK = 1.25
"""A payload has room for this many times the wanted number of elements."""
SURE = 3.0
"""Standard deviations by which the sample's threshold is lowered: one in a thousand is still too high."""
# Smaller numbers are denormal, which processors handle many times more slowly.
TINY = float(np.finfo(np.float32).tiny)
KEPT = 1 << 20
"""A thread keeps the memory of at most this many candidates; only very large buckets have more."""

Places = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]


def wanted_count(ratio: float, numel: int) -> int:
    """Return how many of `numel` elements travel: at least one, unless there is none."""
    return min(numel, max(1, round(ratio * numel)))


def max_count(wanted: int, numel: int) -> int:
    """Return how many elements a receiver accepts where `wanted` are due."""
    return min(numel, int(wanted * SLACK) + 1)


@dataclass(frozen=True)
class SelectionCounts:
    """How many elements travel of which runs, in the form the kernel reads; computed once per layout."""

    rows: Table
    """For each run: start, end, wanted count, stride between sampled lines, rank of the threshold in the sample."""
    room: int
    """The most candidates, and elements of a sample, that there are at once."""
    most: int
    """The most elements of a payload."""

    @classmethod
    def of(cls, ratio: float, runs: Iterable[tuple[int, int]]) -> "SelectionCounts":
        rows = [_row(start, end, wanted_count(ratio, end - start)) for start, end in runs if start < end]
        # Candidates of one run: twice the wanted, and a few pieces before they are thinned out.
        here = [max(2 * count + 8 * PIECE, 8 * math.isqrt(end - start) + LINE) for start, end, count, _, _ in rows]
        room = sum(row[2] for row in rows) + max(here, default=0)
        most = sum(max_count(row[2], row[1] - row[0]) for row in rows)
        return cls(np.array(rows, np.int64).reshape(-1, 5), room, most)


def _row(start: int, end: int, count: int) -> tuple[int, int, int, int, int]:
    # A sample of four times the root of the run's length: reading it then costs as much as what it lets pass.
    lines = (end - start) // LINE
    # An odd stride: an even one would sample only a few columns of a matrix whose width is a power of two.
    stride = max(0, lines // max(1, math.isqrt(end - start) // 4) - 1) | 1
    elements = lines // stride * LINE
    due = count * elements / (end - start)
    rank = math.ceil(due + SURE * math.sqrt(due)) + 2
    return start, end, count, stride, rank if rank < elements else 0


@lru_cache(maxsize=1024)
def count_by_layer(ratio: float, layout: FlatLayout) -> SelectionCounts:
    """Return the counts for `ratio` of every layer."""
    return SelectionCounts.of(ratio, [(part.offset, part.end) for part in layout.parts])


@lru_cache(maxsize=1024)
def count_overall(ratio: float, layout: FlatLayout) -> SelectionCounts:
    """Return the counts for `ratio` of the whole bucket."""
    return SelectionCounts.of(ratio, [(0, layout.numel)])


@dataclass(frozen=True)
class VelocityState:
    """velocity = momentum * velocity + gradient; with masking, zero where an element was sent."""

    velocity: Tensor
    momentum: float
    masking: bool

    def accumulate(self, values: Tensor) -> Tensor:
        """Add `values` and return the velocity."""
        # Two operations, because the kernel rounds twice as well.
        return self.velocity.mul_(self.momentum).add_(values)

    def mask(self, places: Tensor | slice = slice(None)) -> None:
        """Forget the velocity of what was sent, so that it does not push a parameter after its update."""
        if self.masking:
            self.velocity[places] = 0.0


def select_largest(
    values: Tensor, residual: Tensor | None, counts: SelectionCounts, shift: int = 0, push: VelocityState | None = None
) -> tuple[Places, Values] | None:
    """Return places and values of the largest elements of `values + residual`; None if an element is not finite.

    With `residual`, add `values` to it and take out what was selected. With `push` too, add the velocity instead and
    mask it where an element was selected. `shift` varies the sample. The arrays belong to this thread and are
    overwritten by its next call.
    """
    places, found, bits = _scratch.get(counts.room)
    if kernels.fast():
        left, velocity = values if residual is None else residual, values if push is None else push.velocity
        momentum, masking = (0.0, False) if push is None else (push.momentum, push.masking)
        count = kernels.get("select_largest")(
            values.numpy(), left.numpy(), residual is not None, velocity.numpy(), push is not None, momentum, masking,
            counts.rows, shift, places, found, bits,
        )  # fmt: skip
        return None if count < 0 else (places[:count], found[:count])
    return _reference(values, residual, counts, push)


def _reference(
    values: Tensor, residual: Tensor | None, counts: SelectionCounts, push: VelocityState | None
) -> tuple[Places, Values] | None:
    values = values if push is None else push.accumulate(values)
    whole = values if residual is None else residual.add_(values)
    if not bool(torch.isfinite(whole).all()):
        return None
    runs = [start + _first_largest(whole[start:end].abs().numpy(), k) for start, end, k, _, _ in counts.rows.tolist()]
    places = np.concatenate([np.zeros(0, np.int64), *runs])
    index = torch.from_numpy(places)
    found = whole[index].numpy()
    if residual is not None:
        residual[index] = 0.0
    if push is not None:
        push.mask(index)
    return places, found


def _first_largest(sizes: Values, count: int) -> Places:
    # numpy's partition finds the k-th largest in linear time; equal ones are then taken in order of place.
    least = max(float(np.partition(sizes, len(sizes) - count)[len(sizes) - count]), TINY)
    above = np.flatnonzero(sizes > least)
    return np.sort(np.concatenate([above, np.flatnonzero(sizes == least)[: count - len(above)]]))


class _SelectionScratch(threading.local):
    """A thread's memory for candidates, kept between calls: fresh arrays would fault in fresh pages every time."""

    arrays = (np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.int32))

    def get(self, room: int) -> tuple[Places, Values, npt.NDArray[np.int32]]:
        if room <= len(self.arrays[0]):
            return self.arrays
        fresh = (np.empty(room, np.int64), np.empty(room, np.float32), np.empty(room, np.int32))
        if room <= KEPT:
            self.arrays = fresh
        return fresh


_scratch = _SelectionScratch()
