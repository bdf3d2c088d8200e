"""The largest elements of a tensor, by a threshold that a sample suggests: one pass instead of a sort.

The k-th largest magnitude of a sample stands for the k-th of all, as in Lin et al. (DGC, section 3). Whatever the
sample says, the number chosen stays at or below `most(k)`: of too many, exactly the k largest are kept.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.wire import kernels

SAMPLE = 1 << 16
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
    """The magnitude that about `count` elements reach."""
    magnitude = sample(values, rest, shift).abs().numpy()
    rank = max(0, len(magnitude) - max(1, round(count * len(magnitude) / values.numel())))
    value = np.partition(magnitude, rank)[rank]
    return np.float32(max(float(value), TINY)) if np.isfinite(value) else np.float32(np.nan)


def sample(values: Tensor, rest: Tensor | None, shift: int) -> Tensor:
    """Some of `values + rest`, evenly spread, or all if they are few: whole lines of a cache, for one costs as much."""
    if values.numel() <= SAMPLE:
        return values if rest is None else values + rest
    lines = values.numel() // LINE
    stride = max(1, lines * LINE // SAMPLE)
    some = slice(shift % stride, None, stride)
    chosen = values[: lines * LINE].view(lines, LINE)[some]
    if rest is not None:
        chosen = chosen + rest[: lines * LINE].view(lines, LINE)[some]
    return chosen.flatten()


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
