"""Half precision: every value rounded to 16 bits, fp16 or bf16, at half the bytes.

Micikevicius et al., "Mixed Precision Training", ICLR 2018 (fp16 with a scale); Kalamkar et al., "A Study of BFLOAT16
for Deep Learning Training", 2019. fp16 is scaled by a power of two so that the largest value neither overflows nor
flushes the small ones to zero; bf16 has float32's range and needs no scale. Do not use bf16 where 8 bits of precision
are too few and the range is not needed.

    head | a scale per piece, float32 | padding | values          a piece fits a cache, so values are read once
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.wire import kernels
from shoal.wire.codec import Codec, State, magnitude, refuse
from shoal.wire.head import HEAD, exactly, finite, padded, read_head, write_head
from shoal.wire.layout import Layout
from shoal.wire.moment import Moment

PIECE = 1 << 17
"""Elements that share a scale."""
TOP = 14
"""The largest value is scaled to just below 2^15 = 32768, half of what fp16 holds."""


@dataclass(frozen=True)
class Cast(Codec):
    """The common part of both."""

    feedback = False
    dtype: ClassVar[torch.dtype]
    scaled: ClassVar[bool]

    def bound(self, layout: Layout) -> int:
        return self._body(layout) + 2 * layout.numel

    def _body(self, layout: Layout) -> int:
        return HEAD.size + padded(4 * _pieces(layout))

    def pack(
        self, values: Tensor, layout: Layout, state: State, moment: Moment, out: Tensor, rest: Tensor | None = None
    ) -> int:
        size, start = self.bound(layout), self._body(layout)
        write_head(out, self.code, layout.numel)
        out[HEAD.size : start].zero_()
        scales = out[HEAD.size :][: 4 * _pieces(layout)].view(torch.float32)
        body, scratch = out[start:size].view(self.dtype), torch.empty(min(PIECE, layout.numel))
        for number, at in enumerate(range(0, layout.numel, PIECE)):
            piece = values[at : at + PIECE] if rest is None else rest[at : at + PIECE].add_(values[at : at + PIECE])
            largest = magnitude(piece)
            if not math.isfinite(largest):
                refuse(values, layout, rest)
            scales[number] = scale = power_of_two(largest) if self.scaled else 1.0
            half = body[at : at + PIECE]
            half.copy_(piece if scale == 1.0 else torch.mul(piece, scale, out=scratch[: len(piece)]))
            if rest is not None:
                piece.sub_(half.float() / scale)
        return size

    def add(self, payload: Tensor, layout: Layout, out: Tensor) -> None:
        read_head(payload, self.code, layout.numel)
        exactly(payload, self.bound(layout))
        scales = payload[HEAD.size :][: 4 * _pieces(layout)].view(torch.float32).tolist()
        if not all(math.isfinite(scale) and scale > 0 for scale in scales):
            raise PayloadError(
                "a payload has a scale that is not a finite number above 0; it was changed or is foreign"
            )
        body, scratch = payload[self._body(layout) :].view(self.dtype), torch.empty(min(PIECE, layout.numel))
        for at, scale in zip(range(0, layout.numel, PIECE), scales, strict=True):
            piece = body[at : at + PIECE]
            self._refuse_infinite(piece)
            # scales are powers of two, so nothing is rounded
            out[at : at + PIECE].add_(scratch[: len(piece)].copy_(piece), alpha=1.0 / scale)

    def _refuse_infinite(self, piece: Tensor) -> None:
        infinite = 0x7C00 if self.dtype is torch.float16 else 0x7F80
        if not (kernels.fast() and kernels.get("all_below")(piece.view(torch.int16).numpy(), np.int16(infinite))):
            finite(piece, "value")


def _pieces(layout: Layout) -> int:
    return -(-layout.numel // PIECE)


@dataclass(frozen=True)
class Fp16(Cast):
    """IEEE half precision: 11 bits of precision, with a scale."""

    code = 2
    dtype = torch.float16
    scaled = True


@dataclass(frozen=True)
class Bf16(Cast):
    """The upper half of a float32: 8 bits of precision, full range."""

    code = 3
    dtype = torch.bfloat16
    scaled = False


def power_of_two(largest: float, top: int = TOP) -> float:
    """The scale that brings the largest magnitude just below 2^(top + 1); 1 for zeros."""
    return 2.0 ** max(-100, min(100, top + 1 - math.frexp(largest)[1])) if largest else 1.0
