"""Two bits an element: +threshold, -threshold or nothing; what is left waits in the residual.

The 2-bit gradient compression of MXNet's KVStore (Chen et al., "MXNet", 2015; added in version 1.0). Do not use it
without feedback, nor with a threshold far from the size of the gradients: too large a one delays every update, too
small a one holds the large ones back.

    head | codes: 0 nothing, 1 +threshold, 2 -threshold
"""

from dataclasses import dataclass

from torch import Tensor

from shoal.wire import levels
from shoal.wire.codec import GradientCodec, State
from shoal.wire.head import HEAD, exactly, read_head, write_head
from shoal.wire.layout import FlatLayout
from shoal.wire.moment import EncodeContext


@dataclass(frozen=True)
class TwoBitCodec(GradientCodec):
    """Three levels, known to both sides."""

    code = 6
    compiled = levels.KERNELS
    threshold: float = 0.01

    def bound(self, layout: FlatLayout) -> int:
        return HEAD.size + levels.bytes_of(layout.numel)

    def pack(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        moment: EncodeContext,
        out: Tensor,
        rest: Tensor | None = None,
    ) -> int:
        size = self.bound(layout)
        write_head(out, self.code, layout.numel)
        levels.pack(values, layout, self.threshold, out[HEAD.size : size], rest)
        return size

    def add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        read_head(payload, self.code, layout.numel)
        exactly(payload, self.bound(layout))
        levels.check(payload[HEAD.size :])
        levels.add(payload[HEAD.size :], self.threshold, out)
