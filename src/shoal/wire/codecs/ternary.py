"""Three levels per layer: each element becomes ±s with probability |x|/s, else nothing; s is the layer's largest value.

Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning", NIPS 2017. Values are
first clipped at `clip` standard deviations of their layer, which makes s and the noise smaller; 0 does not clip.
Unbiased apart from the clipping, so it needs no feedback. Do not use it with few samples a step: its noise is
averaged away only over many.

    head | s per layer, float32 | codes per layer: 0 nothing, 1 +s, 2 -s
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.wire import kernels, levels
from shoal.wire.codec import Codec, State, refuse, refuse_non_finite
from shoal.wire.head import HEAD, exactly, finite, padded, read_head, write_head
from shoal.wire.layout import Layout, Part
from shoal.wire.moment import Moment, uniforms


@dataclass(frozen=True)
class Ternary(Codec):
    """Stochastic signs with one scale per layer."""

    code = 7
    feedback = False
    clip: float = 2.5

    @property
    def unbiased(self) -> bool:  # type: ignore[override]
        return self.clip == 0

    def bound(self, layout: Layout) -> int:
        return self._body(layout) + sum(levels.bytes_of(part.numel) for part in layout.parts)

    def _body(self, layout: Layout) -> int:
        return HEAD.size + padded(4 * len(layout.parts))

    def _pieces(self, payload: Tensor, layout: Layout) -> list[tuple[Part, Tensor]]:
        at, pieces = self._body(layout), []
        for part in layout.parts:
            size = levels.bytes_of(part.numel)
            pieces.append((part, payload[at : at + size]))
            at += size
        return pieces

    def pack(
        self, values: Tensor, layout: Layout, state: State, moment: Moment, out: Tensor, rest: Tensor | None = None
    ) -> int:
        write_head(out, self.code, layout.numel)
        out[HEAD.size : self._body(layout)].zero_()
        scales = out[HEAD.size : HEAD.size + 4 * len(layout.parts)].view(torch.float32)
        for number, (part, data) in enumerate(self._pieces(out, layout)):
            x = values[part.offset : part.end]
            left = None if rest is None else rest[part.offset : part.end]
            scales[number] = self._layer(x, part, moment.words(), data, left)
        return self.bound(layout)

    def _layer(self, x: Tensor, part: Part, words: tuple[int, int], data: Tensor, rest: Tensor | None) -> float:
        layer = Layout.flat(part.numel, part.name)
        if kernels.fast():
            left = x if rest is None else rest
            bits, squares = kernels.get("fold")(x.numpy(), left.numpy(), rest is not None)
            largest = float(np.int32(bits).view(np.float32))
            if not math.isfinite(largest):
                refuse(x, layer, rest)
        else:
            refuse_non_finite(x, layer)
            whole = x if rest is None else rest.add_(x)
            largest = float(whole.abs().max()) if part.numel else 0.0
            squares = float(whole.double().square().sum())
        scale = self._scale(largest, squares, part.numel)
        if kernels.fast():
            kernels.get("pack_ternary")(
                x.numpy(), left.numpy(), rest is not None, np.float32(scale),
                np.uint32(words[0]), np.uint32(words[1]), part.offset, data.numpy(),
            )  # fmt: skip
            return scale
        chance = (uniforms(part.offset, part.numel, words) * 2.0**24) * (torch.tensor(2.0**-24) * scale)
        up, down = chance < whole, chance < -whole
        levels.write(up.long() + 2 * down.long(), data)
        if rest is not None:
            rest -= torch.tensor(scale) * up
            rest += torch.tensor(scale) * down
        return scale

    def _scale(self, largest: float, squares: float, numel: int) -> float:
        """As float32; whatever lies above it is always sent, as ±scale: that is the clipping."""
        spread = math.sqrt(squares / numel) if numel else 0.0
        return float(np.float32(min(largest, self.clip * spread) if self.clip and spread else largest))

    def add(self, payload: Tensor, layout: Layout, out: Tensor) -> None:
        read_head(payload, self.code, layout.numel)
        exactly(payload, self.bound(layout))
        scales = payload[HEAD.size : HEAD.size + 4 * len(layout.parts)].view(torch.float32)
        finite(scales, "scale")
        if len(scales) and float(scales.min()) < 0:
            raise PayloadError("a payload holds a scale below 0; it was changed or is foreign")
        levels.check(payload[self._body(layout) :])
        for scale, (part, data) in zip(scales.tolist(), self._pieces(payload, layout), strict=True):
            levels.add(data, scale, out[part.offset : part.end])
