"""The largest elements of a tensor, or of each of its layers: one pass instead of a sort, and all layers in one call.

As in Lin et al. (DGC, section 3) the k-th largest magnitude of a sample stands for the k-th of all. Here it is only
where the search begins: taken a little too low, so that exactly the k largest can be kept of what reaches it, and where
it was too high after all, the search is repeated without. So what is chosen depends on the values alone: k elements,
of equal ones the first, or all above the least normal float32 where those are fewer.
"""

import threading

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.wire import kernels
from shoal.wire.push import VelocityState
from shoal.wire.shares import ElementShares

TINY = float(np.finfo(np.float32).tiny)
KEPT = 1 << 20
"""Candidates whose memory a thread keeps: a few hundred thousand elements travel of a very large bucket."""

Places = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]


def largest(
    values: Tensor, rest: Tensor | None, shares: ElementShares, shift: int = 0, push: VelocityState | None = None
) -> tuple[Places, Values] | None:
    """Places and values of what travels of `values + rest`; None where something is not finite.

    With `rest` it is taken out of there; with `push` too, it is the velocity that is added and then masked. `shift`
    varies the sample. What is returned is this thread's, and good until it chooses again.
    """
    places, found, bits = _scratch.of(shares.room)
    if kernels.fast():
        left, velocity = values if rest is None else rest, values if push is None else push.velocity
        momentum, masking = (0.0, False) if push is None else (push.momentum, push.masking)
        count = kernels.get("select_largest")(
            values.numpy(), left.numpy(), rest is not None, velocity.numpy(), push is not None, momentum, masking,
            shares.rows, shift, places, found, bits,
        )  # fmt: skip
        return None if count < 0 else (places[:count], found[:count])
    return _reference(values, rest, shares, push)


def _reference(
    values: Tensor, rest: Tensor | None, shares: ElementShares, push: VelocityState | None
) -> tuple[Places, Values] | None:
    values = values if push is None else push.gain(values)
    whole = values if rest is None else rest.add_(values)
    if not bool(torch.isfinite(whole).all()):
        return None
    runs = [start + _first_largest(whole[start:end].abs().numpy(), k) for start, end, k, _, _ in shares.rows.tolist()]
    places = np.concatenate([np.zeros(0, np.int64), *runs])
    index = torch.from_numpy(places)
    found = whole[index].numpy()
    if rest is not None:
        rest[index] = 0.0
    if push is not None:
        push.lose(index)
    return places, found


def _first_largest(sizes: Values, count: int) -> Places:
    least = max(float(np.partition(sizes, len(sizes) - count)[len(sizes) - count]), TINY)
    above = np.flatnonzero(sizes > least)
    return np.sort(np.concatenate([above, np.flatnonzero(sizes == least)[: count - len(above)]]))


class _Scratch(threading.local):
    """A thread's memory for candidates, again and again: fresh arrays would be given fresh pages."""

    arrays = (np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.int32))

    def of(self, room: int) -> tuple[Places, Values, npt.NDArray[np.int32]]:
        if room <= len(self.arrays[0]):
            return self.arrays
        fresh = (np.empty(room, np.int64), np.empty(room, np.float32), np.empty(room, np.int32))
        if room <= KEPT:
            self.arrays = fresh
        return fresh


_scratch = _Scratch()
