"""Three levels per layer: each element becomes ±s with probability |x|/s, else nothing; s is the layer's largest value.

Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning", NIPS 2017. Values are
first clipped at `clip` standard deviations of their layer, which makes s and the noise smaller; 0 does not clip.
Unbiased apart from the clipping, so it needs no feedback. Do not use it with few samples a step: its noise is
averaged away only over many.

    head | s per layer, float32 | codes per layer: 0 nothing, 1 +s, 2 -s                                packing=plain
    head | s per layer, float32 | (bytes, shift) per layer, int32 | padding | layers one after another      golomb

Most codes are 0, so Golomb's code of the gaps between the others (S. Golomb, "Run-length encodings", 1966; with powers
of two, R. Rice, 1971) takes about 1.3 bits an element with clipping and less without; a layer in which it is not
smaller is written plain. It costs a second pass in which every code waits for the one before.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.wire import kernels, levels
from shoal.wire.builtin import TernarySettings
from shoal.wire.codec import GradientCodec, State, refuse, refuse_non_finite
from shoal.wire.encode_context import EncodeContext, uniforms
from shoal.wire.head import HEAD, check_length, check_scales, padded, read_head, write_head
from shoal.wire.layout import FlatLayout, LayoutPart

# Larger than any shift, so the two cannot be confused.
PLAIN = 31
"""Stands where a layer's shift would."""
LARGEST = 20
LINE = 16
"""Elements of a cache line: reading one of them costs as much as reading all."""
MOST = 1 << 16
"""Elements of a sample."""


@dataclass(frozen=True)
class TernaryCodec(TernarySettings, GradientCodec):
    """Stochastic signs with one scale per layer."""

    code = 7
    dense = True
    default_feedback = False

    @property
    def kernel_names(self) -> tuple[str, ...]:  # type: ignore[override]
        shorter = () if self.packing == "plain" else ("count_levels", "pack_rice", "add_rice")
        return ("measure", "pack_ternary", "add_levels", "any_three", *shorter)

    @property
    def fixed_size(self) -> bool:  # type: ignore[override]
        return self.packing == "plain"

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return self.clip == 0

    def max_bytes(self, layout: FlatLayout) -> int:
        return self._body(layout) + sum(levels.bytes_of(part.numel) for part in layout.parts)

    def _body(self, layout: FlatLayout) -> int:
        return HEAD.size + padded((4 if self.packing == "plain" else 12) * len(layout.parts))

    def _pieces(self, payload: Tensor, layout: FlatLayout) -> list[tuple[LayoutPart, Tensor]]:
        at, pieces = self._body(layout), []
        for part in layout.parts:
            size = levels.bytes_of(part.numel)
            pieces.append((part, payload[at : at + size]))
            at += size
        return pieces

    def encode_into(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        context: EncodeContext,
        out: Tensor,
        residual: Tensor | None = None,
    ) -> int:
        write_head(out, self.code, layout.numel)
        out[HEAD.size : self._body(layout)].zero_()
        scales = out[HEAD.size : HEAD.size + 4 * len(layout.parts)].view(torch.float32)
        for number, (part, data) in enumerate(self._pieces(out, layout)):
            x = values[part.offset : part.end]
            left = None if residual is None else residual[part.offset : part.end]
            scales[number] = self._layer(x, part, context.random_words(), data, left)
        return self.max_bytes(layout) if self.packing == "plain" else self._shorten(out, layout)

    def _table(self, payload: Tensor, layout: FlatLayout) -> Tensor:
        """Bytes and shift of each layer."""
        start = HEAD.size + 4 * len(layout.parts)
        return payload[start : start + 8 * len(layout.parts)].view(torch.int32).view(-1, 2)

    def _shorten(self, out: Tensor, layout: FlatLayout) -> int:
        """Move the layers together, each in the shorter of its two forms; returns the payload's length."""
        table, at = self._table(out, layout), self._body(layout)
        for number, (part, data) in enumerate(self._pieces(out, layout)):
            # A copy: the short form is written over the place that the plain one was made in.
            codes = data.numpy().copy()
            shift = _shift(int(kernels.get("count_levels")(codes)), part.numel)
            room = out[at : at + max(0, len(codes) - 1)].numpy()  # never beyond where the layer began
            size = int(kernels.get("pack_rice")(codes, part.numel, shift, room))
            if size < 0:
                size, shift = len(codes), PLAIN
                out[at : at + size].copy_(torch.from_numpy(codes))
            table[number, 0], table[number, 1] = size, shift
            at += size
        return at

    def _layer(
        self, x: Tensor, part: LayoutPart, words: tuple[int, int], data: Tensor, residual: Tensor | None
    ) -> float:
        layer = FlatLayout.flat(part.numel, part.name)
        scale = self._scale(x, residual)
        if kernels.fast():
            good = kernels.get("pack_ternary")(
                x.numpy(), (x if residual is None else residual).numpy(), residual is not None, np.float32(scale),
                np.uint32(words[0]), np.uint32(words[1]), part.offset, data.numpy(),
            )  # fmt: skip
            if not good or not math.isfinite(scale):
                refuse(x, layer, residual)
            return scale
        refuse_non_finite(x, layer)
        whole = x if residual is None else residual.add_(x)
        chance = (uniforms(part.offset, part.numel, words) * 2.0**24) * (torch.tensor(2.0**-24) * scale)
        up, down = chance < whole, chance < -whole
        levels.write(up.long() + 2 * down.long(), data)
        if residual is not None:
            residual -= torch.tensor(scale) * up
            residual += torch.tensor(scale) * down
        return scale

    def _scale(self, x: Tensor, residual: Tensor | None) -> float:
        """As float32; whatever lies above it is always sent, as ±scale: that is the clipping.

        Of a large layer a sample tells how far its values spread, so that it is read once.
        """
        # Without clipping the exact largest value is needed, or a probability would exceed 1.
        if self.clip and x.numel() > 4 * MOST:
            sample = _sample_lines(x, residual)
            largest, squares, numel = math.inf, float(sample.double().square().sum()), sample.numel()
        else:
            largest, squares, numel = *_measured(x, residual), x.numel()
        spread = math.sqrt(squares / numel) if numel and squares >= 0 else 0.0
        clipped = self.clip * spread
        return float(np.float32(min(largest, clipped) if clipped else 0.0 if largest == math.inf else largest))

    def decode_add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        read_head(payload, self.code, layout.numel)
        if self.packing == "plain":
            check_length(payload, self.max_bytes(layout))
        elif payload.numel() < self._body(layout):
            raise PayloadError(f"a payload of {payload.numel()} bytes has no table of its layers; it was cut")
        scales = payload[HEAD.size : HEAD.size + 4 * len(layout.parts)].view(torch.float32)
        check_scales(scales)
        if self.packing == "plain":
            levels.check(payload[self._body(layout) :])
            for scale, (part, data) in zip(scales.tolist(), self._pieces(payload, layout), strict=True):
                levels.add(data, scale, out[part.offset : part.end])
        else:
            self._add_short(payload, layout, scales.tolist(), out)

    def _add_short(self, payload: Tensor, layout: FlatLayout, scales: list[float], out: Tensor) -> None:
        at = self._body(layout)
        for part, scale, (size, shift) in zip(layout.parts, scales, self._table(payload, layout).tolist(), strict=True):
            whole, place = levels.bytes_of(part.numel), out[part.offset : part.end]
            if not (0 <= size <= whole and at + size <= payload.numel() and (0 <= shift <= LARGEST or shift == PLAIN)):
                raise PayloadError(f"a payload gives layer {part.name!r} {size} bytes (shift {shift}); it is foreign")
            data = payload[at : at + size]
            at += size
            if shift == PLAIN and size == whole:
                levels.check(data)
                levels.add(data, scale, place)
            elif int(kernels.get("add_rice")(data.numpy(), shift, np.float32(scale), place.numpy())) != size:
                raise PayloadError(f"a payload's gaps in layer {part.name!r} end early or lead outside; it was changed")
        check_length(payload, at)


def _measured(x: Tensor, residual: Tensor | None) -> tuple[float, float]:
    """The largest magnitude and the sum of squares."""
    if kernels.fast():
        bits, squares = kernels.get("measure")(
            x.numpy(), (x if residual is None else residual).numpy(), residual is not None
        )
        return float(np.int32(bits).view(np.float32)), float(squares)
    whole = x if residual is None else x + residual
    return float(whole.abs().max()) if x.numel() else 0.0, float(whole.double().square().sum())


def _shift(count: int, numel: int) -> int:
    """How many bits of a gap are written as they are: best where about half of the gaps are shorter than 2^shift."""
    mean = (numel - count) / (count + 1)
    return max(0, min(LARGEST, round(math.log2(max(mean * math.log(2), 1e-9)))))


def _sample_lines(x: Tensor, residual: Tensor | None) -> Tensor:
    """Return an evenly spread sample of a large `x + residual`: every n-th cache line of it."""
    number = x.numel() // LINE
    whole, stride = slice(0, number * LINE), max(1, number * LINE // MOST)
    found = x[whole].view(number, LINE)[::stride]
    if residual is not None:
        found = found + residual[whole].view(number, LINE)[::stride]
    return found.flatten()
