"""Values as they are: the null member of the family, and what small tensors travel as.

Do not use it as a plan's codec: without any, an exchange adds up in place and copies less.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.wire.codec import GradientCodec, State, refuse_non_finite
from shoal.wire.head import HEAD, Bytes, exactly, finite, read_head, write_head
from shoal.wire.layout import FlatLayout
from shoal.wire.moment import EncodeContext


@dataclass(frozen=True)
class RawCodec(GradientCodec):
    """Four bytes an element, exact."""

    code = 1
    feedback = False
    unbiased = True

    def bound(self, layout: FlatLayout) -> int:
        return HEAD.size + 4 * layout.numel

    def pack(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        moment: EncodeContext,
        out: Tensor,
        rest: Tensor | None = None,
    ) -> int:
        refuse_non_finite(values, layout)
        size = self.bound(layout)
        write_head(out, self.code, layout.numel)
        body = out[HEAD.size : size].view(torch.float32)
        body.copy_(values)
        if rest is not None:
            body.add_(rest)
            rest.zero_()
        return size

    def write(self, values: npt.NDArray[np.float32], data: Bytes) -> int:
        """As `pack`, of values that are known to be finite."""
        write_head(data, self.code, len(values))
        size = HEAD.size + 4 * len(values)
        data[HEAD.size : size].view(np.float32)[:] = values
        return size

    def read(self, payload: Tensor, count: int) -> npt.NDArray[np.float32]:
        """The values in a payload of so many, in place."""
        read_head(payload, self.code, count)
        exactly(payload, HEAD.size + 4 * count)
        values = payload.numpy()[HEAD.size :].view(np.float32)
        finite(values, "value")
        return values

    def add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        sums = out.numpy()
        sums += self.read(payload, layout.numel)

    def put(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        out.numpy()[:] = self.read(payload, layout.numel)
