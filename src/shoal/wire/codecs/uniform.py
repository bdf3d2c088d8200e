"""Even levels from -max to +max of each layer, `bits` bits an element, rounded at random: DoReFa's gradients.

Zhou et al., "DoReFa-Net: Training Low Bitwidth Convolutional Neural Networks with Low Bitwidth Gradients", 2016,
section 2.4: 2 max|x| (quantize(x / (2 max|x|) + 1/2 + noise) - 1/2). Unbiased, so it needs no feedback. Do not use it
for layers with a few very large values, nor where most are zero: an odd number of steps has no level at zero.

    head | max per layer, float32 | `bits` bits an element, lowest first
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.wire import bits
from shoal.wire.codecs.checked import CheckedCodec
from shoal.wire.encode_context import EncodeContext, uniforms
from shoal.wire.head import HEAD, check_length, check_scales, padded, read_head
from shoal.wire.layout import FlatLayout


@dataclass(frozen=True)
class UniformCodec(CheckedCodec):
    """2^bits levels per layer."""

    name = "uniform"
    code = 18
    # Not dense: there is no level at zero, so a sum that is coded again gains noise where gradients are zero.
    kernel_names = ("pack_bits", "unpack_bits")
    bits: int = 6

    @property
    def steps(self) -> int:
        return (1 << self.bits) - 1

    def max_bytes(self, layout: FlatLayout) -> int:
        return self._body(layout) + bits.packed_size(layout.numel, self.bits)

    def _body(self, layout: FlatLayout) -> int:
        return HEAD.size + padded(4 * len(layout.parts))

    def encode_whole(self, whole: Tensor, layout: FlatLayout, context: EncodeContext, out: Tensor, keep: bool) -> int:
        size, body = self.max_bytes(layout), self._body(layout)
        out[HEAD.size : body].zero_()
        tops = out[HEAD.size : HEAD.size + 4 * len(layout.parts)].view(torch.float32)
        for number, part in enumerate(layout.parts):
            tops[number] = whole[part.offset : part.end].abs().max() if part.numel else 0.0
        spread = _spread(tops, layout)
        # In double: 8 bits and 24 of noise do not fit a float's precision.
        place = torch.where(spread > 0, whole / (2 * spread), 0.0).double() + 0.5
        # Rounding may put the largest value a little outside.
        level = torch.floor(place * self.steps + uniforms(0, layout.numel, context.random_words())).clamp_(
            0, self.steps
        )
        bits.pack(level.numpy().astype(np.uint32), self.bits, out[body:size].numpy())
        if keep:
            whole -= self._values(level, spread)
        return size

    def decode_add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        read_head(payload, self.code, layout.numel)
        check_length(payload, self.max_bytes(layout))
        tops = payload[HEAD.size : HEAD.size + 4 * len(layout.parts)].view(torch.float32)
        check_scales(tops)
        codes = bits.unpack(payload[self._body(layout) :].numpy(), self.bits, layout.numel)
        out += self._values(torch.from_numpy(codes.astype(np.float64)), _spread(tops, layout))

    def _values(self, level: Tensor, spread: Tensor) -> Tensor:
        return ((level * (2 / self.steps) - 1) * spread).float()


def _spread(tops: Tensor, layout: FlatLayout) -> Tensor:
    """Each element's own layer's scale."""
    return tops.repeat_interleave(torch.tensor([part.numel for part in layout.parts], dtype=torch.int64))
