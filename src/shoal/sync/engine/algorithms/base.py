"""What all-reduce algorithms over links share: a task that sums one flat array per worker, and arithmetic by dtype.

All workers get the same bits. A task never overwrites what it sends, so a sum can be made again after a loss.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import UsageError
from shoal.transport.messages import CHUNK, DTYPES, Array, ChunkHeader, FramePayload, FrameRefused
from shoal.transport.tasks import CollectiveTask

HALF = (torch.float16, torch.bfloat16)


class DtypeArithmetic:
    """Views of memory as arrays, and addition, for one dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        # complex numbers travel and add up as pairs of real ones
        carried = torch.view_as_real(torch.zeros(1, dtype=dtype)).dtype if dtype.is_complex else dtype
        self.dtype, self.half = dtype, dtype in HALF
        self.name = str(carried).removeprefix("torch.")
        if self.name not in DTYPES:
            raise UsageError(f"tensors of {dtype} do not travel between hosts; these do: {', '.join(DTYPES)}")
        self.chunk = CHUNK // DTYPES[self.name].itemsize
        """Elements of a piece: a frame on a link is never longer."""

    def array(self, tensor: Tensor) -> Array:
        """Return the memory of a flat tensor as an array, without a copy."""
        if self.dtype.is_complex:
            tensor = torch.view_as_real(tensor).view(-1)
        # numpy has no bfloat16, so half precision is carried as 16-bit integers
        found: Array = (tensor.view(torch.int16) if self.half else tensor).numpy()
        return found

    def total(self, parts: Sequence[Array], out: Array) -> None:
        """Write the sum of `parts`, added up in their order, into `out`; half precision in float32, rounded once."""
        if self.half:
            wide = [torch.from_numpy(part).view(self.dtype).float() for part in parts]
            whole = wide[0]
            for each in wide[1:]:
                whole = whole + each
            out[:] = whole.to(self.dtype).view(torch.int16).numpy()
            return
        np.add(parts[0], parts[1], out=out)
        for part in parts[2:]:
            np.add(out, part, out=out)


class SumTask(CollectiveTask):
    """Sums `leaving` over the view into `result`, which is filled piece by piece until the task is done."""

    def __init__(self, leaving: Array, result: Array, arithmetic: DtypeArithmetic) -> None:
        super().__init__(leaving.nbytes)
        self.leaving, self.result, self.arithmetic = leaving, result, arithmetic
        self._seen: set[tuple[int, int, int]] = set()

    @classmethod
    def sent_bytes(cls, size: int, workers: int, place: int) -> int:
        """Return what the worker at `place` sends for `size` bytes; 2 (p-1)/p of them is the least that is possible."""
        return 2 * (workers - 1) * size // workers

    def place(self, sender: int, chunk: ChunkHeader, slices: Sequence[slice]) -> slice:
        """Return where a piece belongs; refuse one that does not exist or comes a second time."""
        key = (sender, chunk.phase, chunk.index)
        # a piece counted twice would end the task before all pieces are here
        if chunk.index >= len(slices) or key in self._seen:
            again = " again" if key in self._seen else ""
            raise FrameRefused(f"worker {sender} sends piece {chunk.index} of {len(slices)}{again} in a {self.kind}")
        self._seen.add(key)
        return slices[chunk.index]

    def check(self, sender: int, payload: FramePayload, numel: int) -> Array:
        """Return the array of a payload; refuse one of another length or dtype."""
        if payload.shape != (numel,) or payload.dtype != self.arithmetic.name:
            raise FrameRefused(
                f"worker {sender} sends {payload.shape} of {payload.dtype}, not {numel} of {self.arithmetic.name}"
            )
        return payload.array


def part(numel: int, parts: int, number: int) -> tuple[int, int]:
    """Return where the `number`-th of `parts` nearly equal parts begins and ends."""
    return numel * number // parts, numel * (number + 1) // parts


def pieces(begin: int, end: int, chunk: int) -> list[slice]:
    """Return the slices of at most `chunk` elements from `begin` to `end`."""
    return [slice(at, min(at + chunk, end)) for at in range(begin, end, chunk)]
