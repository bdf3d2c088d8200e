"""Half precision: every value rounded to 16 bits, fp16 or bf16, at half the bytes.

Micikevicius et al., "Mixed Precision Training", ICLR 2018 (fp16 with a scale); Kalamkar et al., "A Study of BFLOAT16
for Deep Learning Training", 2019. fp16 is scaled by a power of two so that the largest value neither overflows nor
flushes the small ones to zero; bf16 has float32's range and needs no scale. Do not use bf16 where 8 bits of precision
are too few and the range is not needed.

    head | scale, float32 | (12 bytes of zeros) | values
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
from shoal.wire.head import HEAD, exactly, finite, read_head, write_head
from shoal.wire.layout import Layout
from shoal.wire.moment import Moment

BODY = HEAD.size + 16
PIECE = 1 << 16
TOP = 14
"""The largest value is scaled to just below 2^15 = 32768, half of what fp16 holds."""


@dataclass(frozen=True)
class Cast(Codec):
    """The common part of both."""

    feedback = False
    dtype: ClassVar[torch.dtype]
    scaled: ClassVar[bool]

    def bound(self, layout: Layout) -> int:
        return BODY + 2 * layout.numel

    def pack(
        self, values: Tensor, layout: Layout, state: State, moment: Moment, out: Tensor, rest: Tensor | None = None
    ) -> int:
        size = self.bound(layout)
        whole = values if rest is None else rest.add_(values)
        largest = magnitude(whole)
        if not math.isfinite(largest):
            refuse(values, layout, rest)
        scale = power_of_two(largest) if self.scaled else 1.0
        write_head(out, self.code, layout.numel)
        out[HEAD.size : BODY].zero_()
        out[HEAD.size : HEAD.size + 4].view(torch.float32).fill_(scale)
        body = out[BODY:size].view(self.dtype)
        narrow(whole, scale, body)
        if rest is not None:
            rest.sub_(body.float() / scale)
        return size

    def add(self, payload: Tensor, layout: Layout, out: Tensor) -> None:
        read_head(payload, self.code, layout.numel)
        exactly(payload, self.bound(layout))
        scale = float(payload[HEAD.size : HEAD.size + 4].view(torch.float32))
        if not (math.isfinite(scale) and scale > 0):
            raise PayloadError(f"a payload has the scale {scale}; a scale is a finite number above 0")
        body = payload[BODY:].view(self.dtype)
        infinite = 0x7C00 if self.dtype is torch.float16 else 0x7F80
        below = kernels.fast() and kernels.get("all_below")(body.view(torch.int16).numpy(), np.int16(infinite))
        if not below:
            finite(body, "value")
        widen(body, scale, out)


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


def narrow(values: Tensor, scale: float, body: Tensor) -> None:
    """body = values * scale, piece by piece: no copy of the whole, and each piece stays in the cache."""
    if scale == 1.0:
        body.copy_(values)
        return
    scratch = torch.empty(min(PIECE, len(values)))
    for at in range(0, len(values), PIECE):
        piece = values[at : at + PIECE]
        body[at : at + PIECE].copy_(torch.mul(piece, scale, out=scratch[: len(piece)]))


def widen(body: Tensor, scale: float, out: Tensor) -> None:
    """out += body / scale, piece by piece; scales are powers of two, so nothing is rounded."""
    scratch = torch.empty(min(PIECE, len(out)))
    for at in range(0, len(out), PIECE):
        piece = body[at : at + PIECE]
        out[at : at + PIECE].add_(scratch[: len(piece)].copy_(piece), alpha=1.0 / scale)


def power_of_two(largest: float, top: int = TOP) -> float:
    """The scale that brings the largest magnitude just below 2^(top + 1); 1 for zeros."""
    return 2.0 ** max(-100, min(100, top + 1 - math.frexp(largest)[1])) if largest else 1.0
