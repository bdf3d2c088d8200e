"""Fixed point: `bits` bits, of which `frac` stand after the point, rounded at random or to the nearest.

Gupta et al., "Deep Learning with Limited Numerical Precision", ICML 2015: with stochastic rounding 16 bits train like
float32, with rounding to the nearest small gradients vanish. What is out of range becomes the largest number there is.
Do not use it where gradients may be smaller than 2^-frac by much: their noise is then larger than they are.

    head | `bits` bits an element, lowest first
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.wire import bits
from shoal.wire.builtin import FixedSettings
from shoal.wire.codecs.checked import CheckedCodec
from shoal.wire.encode_context import EncodeContext, uniforms
from shoal.wire.head import HEAD, check_length, read_head
from shoal.wire.layout import FlatLayout


@dataclass(frozen=True)
class FixedPointCodec(FixedSettings, CheckedCodec):
    """Two's complement, shifted so that codes are not negative."""

    code = 8
    dense = True
    kernel_names = ("pack_bits", "unpack_bits")

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return self.rounding == "stochastic"

    def max_bytes(self, layout: FlatLayout) -> int:
        return HEAD.size + bits.packed_size(layout.numel, self.bits)

    def encode_whole(self, whole: Tensor, layout: FlatLayout, context: EncodeContext, out: Tensor, keep: bool) -> int:
        size = self.max_bytes(layout)
        half = 1 << (self.bits - 1)
        # floor(x + u) with u uniform rounds up with the probability of the fraction; with u = 1/2 to the nearest.
        noise = uniforms(0, layout.numel, context.random_words()) if self.rounding == "stochastic" else 0.5
        # In double: 16 bits and 24 of noise do not fit a float's precision.
        level = torch.floor(whole.double() * 2.0**self.frac + noise).clamp(-half, half - 1)
        codes = (level.long() + half).numpy().astype(np.uint32)
        bits.pack(codes, self.bits, out[HEAD.size : size].numpy())
        if keep:
            whole -= (level * 2.0**-self.frac).float()
        return size

    def decode_add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        read_head(payload, self.code, layout.numel)
        check_length(payload, self.max_bytes(layout))
        codes = bits.unpack(payload[HEAD.size :].numpy(), self.bits, layout.numel)
        level = torch.from_numpy(codes.astype(np.int64) - (1 << (self.bits - 1)))
        out += (level.double() * 2.0**-self.frac).float()
