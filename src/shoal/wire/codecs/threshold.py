"""Elements whose residual reaches ±t travel, as ±t and their place; the rest of them stays in the residual.

Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", Interspeech 2015. Places are written
sparsely, or, when many are over the threshold, as two bits an element. Do not use it without knowing the size of the
gradients: a t too large sends nothing for long, one too small holds large gradients back.

    head (count; extra = 0) | places | signs, one bit each
    head (extra = 1)        | two bits an element, as in twobit
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.wire import bits, levels
from shoal.wire.codec import GradientCodec, State
from shoal.wire.encode_context import EncodeContext
from shoal.wire.head import HEAD, check_length, read_head, write_head
from shoal.wire.layout import FlatLayout
from shoal.wire.sparse_settings import ThresholdSettings

SPARSE, DENSE = 0, 1


@dataclass(frozen=True)
class ThresholdCodec(ThresholdSettings, GradientCodec):
    """Strom's codec."""

    code = 13
    kernel_names = (*levels.KERNELS, *bits.PLACES_KERNELS)
    fixed_size = False

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
        numel, body = layout.numel, out[HEAD.size : self.max_bytes(layout)]
        levels.pack(values, layout, self.t, body, residual)  # the dense form first: it is there if the sparse is longer
        places, down = _over(body, numel)
        size = bits.places_size(len(places), numel)
        length = HEAD.size + size + bits.packed_size(len(places), 1)
        # Both forms lie ready; the shorter is a matter of how many elements are over the threshold.
        if length >= self.max_bytes(layout):
            write_head(out, self.code, numel, extra=DENSE)
            return self.max_bytes(layout)
        write_head(out, self.code, numel, len(places), SPARSE)
        bits.write_places(places, numel, out[HEAD.size : HEAD.size + size].numpy())
        out[HEAD.size + size : length].numpy()[:] = np.packbits(down, bitorder="little")
        return length

    def decode_add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        count, extra = read_head(payload, self.code, layout.numel)
        if extra == DENSE:
            check_length(payload, self.max_bytes(layout))
            levels.check(payload[HEAD.size :])
            levels.add(payload[HEAD.size :], self.t, out)
            return
        if extra != SPARSE or count > layout.numel:
            raise PayloadError(f"a payload says {count} of {layout.numel} elements (format {extra}); it is foreign")
        split = HEAD.size + bits.places_size(count, layout.numel)
        check_length(payload, split + bits.packed_size(count, 1))
        places = bits.read_places(payload[HEAD.size : split].numpy(), count, layout.numel)
        down = np.unpackbits(payload[split:].numpy(), count=count, bitorder="little")
        out[torch.from_numpy(places)] += torch.where(torch.from_numpy(down).bool(), -self.t, self.t)


def _over(codes: Tensor, numel: int) -> tuple[bits.Places, bits.Bytes]:
    """Places with a code, and 1 where it is the negative one; bytes without any are skipped."""
    data = codes.numpy()
    busy = np.flatnonzero(data)
    each = (data[busy, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3
    rows, columns = np.nonzero(each)
    return (4 * busy[rows] + columns).astype(np.int64), (each[rows, columns] == 2).astype(np.uint8)
