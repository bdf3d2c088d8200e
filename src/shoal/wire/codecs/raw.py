"""Values as they are: the null member of the family, and what small tensors travel as.

Do not use it as a plan's codec: without any, an exchange adds up in place and copies less.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.wire.codec import GradientCodec, State, refuse_non_finite
from shoal.wire.encode_context import EncodeContext
from shoal.wire.head import HEAD, Bytes, check_finite, check_length, read_head, write_head
from shoal.wire.layout import FlatLayout


@dataclass(frozen=True)
class RawCodec(GradientCodec):
    """Four bytes an element, exact."""

    name = "raw"
    code = 1
    default_feedback = False
    unbiased = True

    def max_bytes(self, layout: FlatLayout) -> int:
        return HEAD.size + 4 * layout.numel

    def encode_into(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        context: EncodeContext,
        out: Tensor,
        residual: Tensor | None = None,
    ) -> int:
        refuse_non_finite(values, layout)
        size = self.max_bytes(layout)
        write_head(out, self.code, layout.numel)
        body = out[HEAD.size : size].view(torch.float32)
        # Copied, then added: `values` belongs to the caller.
        body.copy_(values)
        if residual is not None:
            body.add_(residual)
            residual.zero_()
        return size

    def write(self, values: npt.NDArray[np.float32], data: Bytes) -> int:
        """Write a payload of values that are known to be finite; return its length."""
        write_head(data, self.code, len(values))
        size = HEAD.size + 4 * len(values)
        data[HEAD.size : size].view(np.float32)[:] = values
        return size

    def read(self, payload: Tensor, count: int) -> npt.NDArray[np.float32]:
        """Return the values of a payload as a view of it."""
        read_head(payload, self.code, count)
        check_length(payload, HEAD.size + 4 * count)
        values = payload.numpy()[HEAD.size :].view(np.float32)
        check_finite(values, "value")
        return values

    def decode_add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        sums = out.numpy()
        sums += self.read(payload, layout.numel)

    def decode_into(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        out.numpy()[:] = self.read(payload, layout.numel)
