"""Which layers a worker has gradients of. Of the others nothing is sent, and their codec state stays as it is."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
from torch import Tensor

from shoal.wire.codec import State

Marks = npt.NDArray[np.uint8] | npt.NDArray[np.float64]


def write_marks(present: Sequence[bool], out: Tensor) -> None:
    """Write a bit for each layer."""
    marks = np.packbits(np.array(present, np.uint8), bitorder="little")
    out[: len(marks)].numpy()[:] = marks


def read_marks(data: Tensor, count: int) -> Marks:
    return np.unpackbits(data.numpy(), count=count, bitorder="little")


def no_marks(count: int, non_finite: bool) -> Marks:
    """Return the marks of a worker that sends no layer: NaN, which stays in any sum, if its numbers are not finite."""
    return np.full(count, np.nan if non_finite else 0.0)


@contextmanager
def without_state_of(absent: set[str], named: State) -> Iterator[None]:
    """Hide the state of absent layers inside the block; `named` are views of it, called `kind.layer`."""
    # zero, so that a codec finds nothing to send of them; restored afterwards, so that no residual is lost
    kept = [(view, view.clone()) for name, view in named.items() if name.partition(".")[2] in absent]
    for view, _ in kept:
        view.zero_()
    yield
    for view, before in kept:
        view.copy_(before)
