"""The largest elements of a tensor, by a threshold that a sample suggests: one pass instead of a sort.

The k-th largest magnitude of a sample stands for the k-th of all, as in Lin et al. (DGC, section 3). Whatever the
sample says, the number chosen stays at or below `most(k)`: of too many, exactly the k largest are kept.
"""

import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.wire import kernels

LEAST, MOST = 1 << 12, 1 << 16
"""Elements of a sample."""
HITS = 32
"""Elements of a sample that should reach the threshold: enough to tell it within a fifth or so."""
LINE = 16
SLACK = 1.25
TINY = float(np.finfo(np.float32).tiny)


def most(wanted: int, numel: int) -> int:
    return min(numel, int(wanted * SLACK) + 1)


def wanted(ratio: float, numel: int) -> int:
    """At least one of something."""
    return min(numel, max(1, round(ratio * numel)))


def largest(
    values: Tensor, rest: Tensor | None, count: int, first: int, shift: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]] | None:
    """About `count` places (plus `first`) and values of `values + rest`; None where something is not finite.

    With `rest` they are taken out of it. `shift` varies the sample.
    """
    numel = values.numel()
    if numel == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.float32)
    threshold = _threshold(values, rest, count, shift)
    if not np.isfinite(threshold):
        return None
    room = min(numel, 4 * count + 1024)
    places, found = np.empty(room, np.int64), np.empty(room, np.float32)
    if kernels.fast():
        left = (values if rest is None else rest).numpy()
        chosen = kernels.get("select_above")(values.numpy(), left, rest is not None, threshold, places, found)
    else:
        chosen = _reference(values, rest, threshold, places, found)
    if chosen < 0:
        return None
    places, found = places[:chosen], found[:chosen]
    if chosen > most(count, numel):
        places, found = _cut(places, found, count, rest)
    return places + first, found


def _threshold(values: Tensor, rest: Tensor | None, count: int, shift: int) -> np.float32:
    """The magnitude that about `count` elements reach; NaN where something is not finite."""
    lines = Lines.of(values.numel(), HITS * values.numel() // max(1, count), shift)
    k = min(lines.elements, max(1, round(count * lines.elements / values.numel())))
    if kernels.fast():
        left = (values if rest is None else rest).numpy()
        found = kernels.get("kth_magnitude")(
            values.numpy(), left, rest is not None, lines.size, lines.first, lines.stride, k, _scratch(lines.elements)
        )
        value = np.int32(found).view(np.float32)
    else:
        value = np.partition(lines.sample(values, rest).abs().numpy(), lines.elements - k)[lines.elements - k]
    return np.float32(max(float(value), TINY)) if np.isfinite(value) else np.float32(np.nan)


@dataclass(frozen=True)
class Lines:
    """A sample that is spread evenly: whole lines of a cache, for one element costs as much; all of what is little."""

    number: int
    size: int
    first: int
    stride: int

    @classmethod
    def of(cls, numel: int, wanted: int = MOST, shift: int = 0) -> "Lines":
        """About `wanted` of `numel` elements; `shift` varies which."""
        wanted = min(MOST, max(LEAST, wanted))
        if numel <= wanted:
            return cls(1, numel, 0, 1)
        number = numel // LINE
        stride = max(1, number * LINE // wanted)
        return cls(number, LINE, shift % stride, stride)

    @property
    def elements(self) -> int:
        return len(range(self.first, self.number, self.stride)) * self.size

    def sample(self, values: Tensor, rest: Tensor | None) -> Tensor:
        """What of `values + rest` is in it."""
        whole = slice(0, self.number * self.size)
        found = values[whole].view(self.number, self.size)[self.first :: self.stride]
        if rest is not None:
            found = found + rest[whole].view(self.number, self.size)[self.first :: self.stride]
        return found.flatten()


_kept = threading.local()


def _scratch(size: int) -> npt.NDArray[np.int32]:
    """This thread's, again and again: a sample is large enough for a fresh one to be given fresh pages."""
    if not hasattr(_kept, "bits"):
        _kept.bits = np.empty(MOST + LINE, np.int32)
    found: npt.NDArray[np.int32] = _kept.bits[:size]
    return found if len(found) == size else np.empty(size, np.int32)


def _cut(
    places: npt.NDArray[np.int64], found: npt.NDArray[np.float32], count: int, rest: Tensor | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Keep the `count` largest; the others go back."""
    keep = np.zeros(len(found), bool)
    keep[np.argpartition(np.abs(found), len(found) - count)[len(found) - count :]] = True
    if rest is not None:
        rest[torch.from_numpy(places[~keep])] = torch.from_numpy(found[~keep])
    return places[keep], found[keep]


def _reference(
    values: Tensor, rest: Tensor | None, threshold: np.float32, places: npt.NDArray[np.int64],
    found: npt.NDArray[np.float32],
) -> int:  # fmt: skip
    whole = values if rest is None else rest.add_(values)
    if not bool(torch.isfinite(whole).all()):
        return -1
    index = (whole.abs() >= float(threshold)).nonzero()[: len(places), 0]
    places[: len(index)], found[: len(index)] = index.numpy(), whole[index].numpy()
    if rest is not None:
        rest[index] = 0.0
    return len(index)
