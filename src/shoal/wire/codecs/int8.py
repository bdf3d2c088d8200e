"""8-bit integers with a scale per block, rounded up or down at random so that the mean is right.

Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", ICLR 2016 (8 bits a gradient); block-wise scales as
in Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022; here linear, with stochastic rounding.
Do not use it for blocks with a few very large values: the small ones beside them lose their bits.

    head | a scale per block, float32 | one byte an element
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.wire import kernels
from shoal.wire.builtin import Int8Settings
from shoal.wire.codec import GradientCodec, State, refuse, refuse_non_finite
from shoal.wire.encode_context import EncodeContext, uniforms
from shoal.wire.head import HEAD, check_length, check_scales, padded, read_head, write_head
from shoal.wire.layout import FlatLayout

SMALLEST = 1e-30
"""A block whose largest value is below travels as zeros: its scale would not be a normal number."""


@dataclass(frozen=True)
class Int8Codec(Int8Settings, GradientCodec):
    """Linear levels from -127 to 127 of each block's largest magnitude."""

    code = 4
    dense = True
    kernel_names = ("pack_int8", "add_int8")
    default_feedback = False
    unbiased = True

    def max_bytes(self, layout: FlatLayout) -> int:
        return self._body(layout) + layout.numel

    def _body(self, layout: FlatLayout) -> int:
        return HEAD.size + padded(4 * (len(layout.blocks(self.block, 8)) - 1))

    def _scales(self, payload: Tensor, layout: FlatLayout) -> Tensor:
        return payload[HEAD.size :][: 4 * (len(layout.blocks(self.block, 8)) - 1)].view(torch.float32)

    def encode_into(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        context: EncodeContext,
        out: Tensor,
        residual: Tensor | None = None,
    ) -> int:
        size, body, words = self.max_bytes(layout), self._body(layout), context.random_words()
        write_head(out, self.code, layout.numel)
        out[HEAD.size : body].zero_()
        # -128 is left out, so that both signs have the same levels.
        scales, codes = self._scales(out, layout), out[body:size].view(torch.int8)
        if kernels.fast():
            table, left = layout.blocks(self.block, 8), values if residual is None else residual
            bad = kernels.get("pack_int8")(
                values.numpy(), left.numpy(), residual is not None, table,
                np.uint32(words[0]), np.uint32(words[1]), scales.numpy(), codes.numpy(),
            )  # fmt: skip
            if bad >= 0:
                refuse(values, layout, residual)
        else:
            self._reference(values, layout, words, residual, scales, codes)
        return size

    def _reference(
        self,
        values: Tensor,
        layout: FlatLayout,
        words: tuple[int, int],
        residual: Tensor | None,
        scales: Tensor,
        codes: Tensor,
    ) -> None:
        refuse_non_finite(values, layout)
        whole = values if residual is None else residual.add_(values)
        for number, (start, end, _) in enumerate(layout.blocks(self.block, 8)[:-1].tolist()):
            x = whole[start:end]
            largest = x.abs().max()
            large = bool(largest > SMALLEST)
            scale = largest / 127 if large else torch.zeros(())
            inverse = 127 / largest if large else torch.zeros(())
            # Multiplied by the inverse as the kernel does, so that both give the same bits.
            level = torch.floor(x * inverse + uniforms(start, end - start, words)).clamp(-127, 127)
            scales[number], codes[start:end] = scale, level.to(torch.int8)
            if residual is not None:
                x -= level * scale

    def decode_add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        self._decode(payload, layout, out, fresh=False)

    def decode_into(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        self._decode(payload, layout, out, fresh=True)

    def _decode(self, payload: Tensor, layout: FlatLayout, out: Tensor, fresh: bool) -> None:
        read_head(payload, self.code, layout.numel)
        check_length(payload, self.max_bytes(layout))
        scales, codes = self._scales(payload, layout), payload[self._body(layout) :].view(torch.int8)
        check_scales(scales)
        table = layout.blocks(self.block, 8)
        if kernels.fast():
            kernels.get("add_int8")(codes.numpy(), scales.numpy(), table, fresh, out.numpy())
            return
        if fresh:
            out.zero_()
        for number, (start, end, _) in enumerate(table[:-1].tolist()):
            out[start:end] += codes[start:end].float() * scales[number]
