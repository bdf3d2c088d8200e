"""Two bits an element: +threshold, -threshold or nothing; what is left waits in the residual.

The 2-bit gradient compression of MXNet's KVStore (Chen et al., "MXNet", 2015; added in version 1.0). Do not use it
without feedback, nor with a threshold far from the size of the gradients: too large a one delays every update, too
small a one holds the large ones back.

    head | codes: 0 nothing, 1 +threshold, 2 -threshold
"""

from dataclasses import dataclass, replace

from torch import Tensor

from shoal.wire import levels
from shoal.wire.builtin import TwoBitSettings
from shoal.wire.codec import GradientCodec, State
from shoal.wire.encode_context import EncodeContext
from shoal.wire.head import HEAD, check_length, read_head, write_head
from shoal.wire.layout import FlatLayout


@dataclass(frozen=True)
class TwoBitCodec(TwoBitSettings, GradientCodec):
    """Three levels, known to both sides."""

    code = 6
    dense = True
    kernel_names = levels.KERNELS

    def for_sum_of(self, workers: int) -> "TwoBitCodec":
        # A sum may be `workers` times as large; with the threshold of one worker the owner's residual would grow.
        return replace(self, threshold=self.threshold * workers)

    def max_bytes(self, layout: FlatLayout) -> int:
        return HEAD.size + levels.bytes_of(layout.numel)

    def encode_into(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        context: EncodeContext,
        out: Tensor,
        residual: Tensor | None = None,
    ) -> int:
        size = self.max_bytes(layout)
        write_head(out, self.code, layout.numel)
        levels.pack(values, layout, self.threshold, out[HEAD.size : size], residual)
        return size

    def decode_add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        read_head(payload, self.code, layout.numel)
        check_length(payload, self.max_bytes(layout))
        # Before anything is added: `out` must not hold half of a payload that is refused.
        levels.check(payload[HEAD.size :])
        levels.add(payload[HEAD.size :], self.threshold, out)
