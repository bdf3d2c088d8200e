"""How tensors of a dtype are carried as arrays, and added up: the same bits on every worker.

float16 and bfloat16 are added up in float32 and rounded once; complex numbers are pairs of reals.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shoal.cluster.links.frames import CHUNK, DTYPES, Array
from shoal.core.errors import UsageError

HALF = (torch.float16, torch.bfloat16)


class Arithmetic:
    """Of one dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        carried = torch.view_as_real(torch.zeros(1, dtype=dtype)).dtype if dtype.is_complex else dtype
        self.dtype, self.half = dtype, dtype in HALF
        self.name = str(carried).removeprefix("torch.")
        if self.name not in DTYPES:
            raise UsageError(f"tensors of {dtype} do not travel between hosts; these do: {', '.join(DTYPES)}")
        self.chunk = CHUNK // DTYPES[self.name].itemsize
        """Elements of a piece."""

    def array(self, tensor: Tensor) -> Array:
        """The memory of a flat tensor (shared, not copied)."""
        if self.dtype.is_complex:
            tensor = torch.view_as_real(tensor).view(-1)
        found: Array = (tensor.view(torch.int16) if self.half else tensor).numpy()
        return found

    def total(self, parts: Sequence[Array], out: Array) -> None:
        """The sum of `parts`, added up in their order, into `out`."""
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
