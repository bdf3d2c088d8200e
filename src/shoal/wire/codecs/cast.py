"""Half precision: every value rounded to 16 bits, fp16 or bf16, at half the bytes.

Micikevicius et al., "Mixed Precision Training", ICLR 2018 (fp16 with a scale); Kalamkar et al., "A Study of BFLOAT16
for Deep Learning Training", 2019. fp16 is scaled by a power of two so that the largest value neither overflows nor
flushes the small ones to zero; bf16 has float32's range and needs no scale. Do not use bf16 where 8 bits of precision
are too few and the range is not needed.

    head | fp16: a scale per piece, float32 | padding | values          a piece fits a cache, so values are read once
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.wire import kernels
from shoal.wire.builtin import Bf16Settings, Fp16Settings
from shoal.wire.codec import GradientCodec, State, magnitude, refuse
from shoal.wire.encode_context import EncodeContext
from shoal.wire.head import HEAD, check_finite, check_length, padded, read_head, write_head
from shoal.wire.layout import FlatLayout

PIECE = 4096
"""Elements that share a scale."""
TOP = 14
"""The largest value is scaled to just below 2^15 = 32768, half of what fp16 holds."""


@dataclass(frozen=True)
class CastCodec(GradientCodec):
    """The common part of both: the layout of a payload, and the torch reference."""

    default_feedback = False
    summed_as = "cast"
    dtype: ClassVar[torch.dtype]
    scaled: ClassVar[bool]

    @abstractmethod
    def _scales(self, payload: Tensor, layout: FlatLayout) -> Tensor | None:
        """A scale per piece, where there are scales."""

    @abstractmethod
    def _body(self, layout: FlatLayout) -> int: ...

    @abstractmethod
    def _narrow(self, values: Tensor, scales: Tensor | None, body: Tensor) -> bool:
        """Write `values`; whether they are finite."""

    @abstractmethod
    def _widen(self, body: Tensor, scales: Tensor | None, sign: float, out: Tensor) -> bool:
        """Add sign * the decoded values to `out`; return whether they are finite."""

    def summed_bytes(self, layout: FlatLayout) -> int:
        return 2 * layout.numel

    def max_bytes(self, layout: FlatLayout) -> int:
        return self._body(layout) + 2 * layout.numel

    def encode_into(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        context: EncodeContext,
        out: Tensor,
        residual: Tensor | None = None,
    ) -> int:
        size, start = self.max_bytes(layout), self._body(layout)
        whole = values if residual is None else residual.add_(values)
        write_head(out, self.code, layout.numel)
        out[HEAD.size : start].zero_()
        scales, body = self._scales(out, layout), out[start:size].view(self.dtype)
        if not self._narrow(whole, scales, body):
            refuse(values, layout, residual)
        if residual is not None:
            self._widen(body, scales, -1.0, residual)
        return size

    def decode_add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        read_head(payload, self.code, layout.numel)
        check_length(payload, self.max_bytes(layout))
        scales, body = self._scales(payload, layout), payload[self._body(layout) :].view(self.dtype)
        if scales is not None and not bool((scales.isfinite() & (scales > 0)).all()):
            raise PayloadError("a payload holds a scale that is no finite number above 0; it was changed or is foreign")
        # Told by the same pass that adds; only an error needs a second one.
        if not self._widen(body, scales, 1.0, out):
            check_finite(body, "value")


@dataclass(frozen=True)
class Fp16Codec(Fp16Settings, CastCodec):
    """IEEE half precision: 11 bits of precision, with a scale."""

    code = 2
    kernel_names = ("pack_fp16", "add_fp16")
    dtype = torch.float16
    scaled = True

    def _body(self, layout: FlatLayout) -> int:
        return HEAD.size + padded(4 * -(-layout.numel // PIECE))

    def _scales(self, payload: Tensor, layout: FlatLayout) -> Tensor:
        return payload[HEAD.size :][: 4 * -(-layout.numel // PIECE)].view(torch.float32)

    def _narrow(self, values: Tensor, scales: Tensor | None, body: Tensor) -> bool:
        assert scales is not None
        if kernels.fast() and kernels.halves():
            bits = body.view(torch.int16).numpy()
            return bool(kernels.get("pack_fp16")(values.numpy(), scales.numpy(), PIECE, bits))
        for number in range(len(scales)):
            piece = values[number * PIECE : (number + 1) * PIECE]
            scales[number] = scale = power_of_two(magnitude(piece))
            body[number * PIECE : (number + 1) * PIECE].copy_(piece * scale)
        return bool(values.isfinite().all())

    def _widen(self, body: Tensor, scales: Tensor | None, sign: float, out: Tensor) -> bool:
        assert scales is not None
        if kernels.fast() and kernels.halves():
            bits = body.view(torch.int16).numpy()
            return bool(kernels.get("add_fp16")(bits, scales.numpy(), PIECE, np.float32(sign), out.numpy()))
        # scales are powers of two, so nothing is rounded
        out += body.float() * (sign / scales).repeat_interleave(PIECE)[: len(body)]
        return bool(body.isfinite().all())


@dataclass(frozen=True)
class Bf16Codec(Bf16Settings, CastCodec):
    """The upper half of a float32: 8 bits of precision, full range, and so without a scale."""

    code = 3
    kernel_names = ("pack_bf16", "add_bf16")
    dtype = torch.bfloat16
    scaled = False

    def _body(self, layout: FlatLayout) -> int:
        return HEAD.size

    def _scales(self, payload: Tensor, layout: FlatLayout) -> None:
        return None

    def _narrow(self, values: Tensor, scales: Tensor | None, body: Tensor) -> bool:
        if kernels.fast():
            return bool(kernels.get("pack_bf16")(values.numpy(), body.view(torch.uint16).numpy()))
        body.copy_(values)
        return bool(values.isfinite().all())

    def _widen(self, body: Tensor, scales: Tensor | None, sign: float, out: Tensor) -> bool:
        if kernels.fast():
            return bool(kernels.get("add_bf16")(body.view(torch.int16).numpy(), np.float32(sign), out.numpy()))
        out.add_(body.float(), alpha=sign)
        return bool(body.isfinite().all())


def power_of_two(largest: float, top: int = TOP) -> float:
    """The scale that brings the largest magnitude just below 2^(top + 1); 1 for zeros."""
    # A power of two, so that scaling and its inverse round nothing; bounded, so that neither leaves float32's range.
    return 2.0 ** max(-100, min(100, top + 1 - math.frexp(largest)[1])) if largest else 1.0
