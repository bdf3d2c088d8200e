"""Who has which layers, and layers that are not there: their residual stays, and nothing of theirs is sent."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
from torch import Tensor

from shoal.wire.codec import State

Marks = npt.NDArray[np.uint8] | npt.NDArray[np.float64]


def write_marks(present: Sequence[bool], out: Tensor) -> None:
    """A bit for each layer."""
    marks = np.packbits(np.array(present, np.uint8), bitorder="little")
    out[: len(marks)].numpy()[:] = marks


def read_marks(data: Tensor, count: int) -> Marks:
    return np.unpackbits(data.numpy(), count=count, bitorder="little")


def none(count: int, spoiled: bool) -> Marks:
    """Of a worker that has no layer; NaN, which stays in any sum, if that is because its numbers are not finite."""
    return np.full(count, np.nan if spoiled else 0.0)


@contextmanager
def held(named: State, absent: set[str]) -> Iterator[None]:
    """Inside, absent layers have no state; `named` are views of it, called `kind.layer`."""
    kept = [(view, view.clone()) for name, view in named.items() if name.partition(".")[2] in absent]
    for view, _ in kept:
        view.zero_()
    yield
    for view, before in kept:
        view.copy_(before)
