"""The gradient of a linear layer as the two factors it is the product of: its batch of inputs, and of output gradients.

Chilimbi et al., "Project Adam: Building an Efficient and Scalable Deep Learning Training System", OSDI 2014, and Zhang
et al., "Poseidon: An Efficient Communication Architecture for Distributed Deep Learning on GPU Clusters", ATC 2017
("sufficient factors"): for b rows and an m x n layer b (m + n) numbers travel instead of m n. The factors are
multiplied before they leave: a layer whose product is not the gradient, whatever the reason, travels as it is, exact.
Do not use it for batches of many rows.

    head | rows of every layer, int32, -1 for the gradient itself | padding | by layer: output gradients, inputs, or all
"""

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.core.term import INTERNAL
from shoal.wire.codec import GradientCodec, State, refuse_non_finite
from shoal.wire.encode_context import EncodeContext
from shoal.wire.head import HEAD, check_finite, check_length, padded, read_head, write_head
from shoal.wire.layout import FlatLayout, LayoutPart

WHOLE = -1
VALUE = 4
CLOSE = 1e-6
"""Of the largest element of a gradient: by how much a product may differ from it."""


class FactorSource(Protocol):
    """What has seen the forward and backward passes of the layers."""

    def take(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Return (output gradients, inputs) of a weight since it was last asked, row by row; None if too many."""

    def sent_whole(self, name: str, reason: str) -> None:
        """Hear that a gradient travelled as it is."""


class NoFactors:
    """The null member: nothing was seen."""

    def take(self, name: str) -> tuple[Tensor, Tensor] | None:
        return None

    def sent_whole(self, name: str, reason: str) -> None:
        """Nobody asks."""


@dataclass(frozen=True)
class FactorCodec(GradientCodec):
    """Exact to float precision; never longer than the gradients and a number a layer."""

    name: ClassVar[str] = "factors"
    code = 17
    default_feedback = False
    unbiased = True
    fixed_size = False

    source: FactorSource = field(default_factory=NoFactors, metadata=INTERNAL, compare=False)

    def max_bytes(self, layout: FlatLayout) -> int:
        return _start(layout) + VALUE * layout.numel

    def encode_into(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        context: EncodeContext,
        out: Tensor,
        residual: Tensor | None = None,
    ) -> int:
        whole = values if residual is None else residual.add_(values)
        refuse_non_finite(values, layout, residual)
        write_head(out, self.code, layout.numel)
        at = _start(layout)
        out[HEAD.size : at].zero_()
        table = out[HEAD.size : HEAD.size + VALUE * len(layout.parts)].view(torch.int32)
        for number, part in enumerate(layout.parts):
            pieces, table[number] = self._pieces(whole[part.offset : part.end], part)
            for piece in pieces:
                end = at + VALUE * piece.numel()
                out[at:end].view(torch.float32).copy_(piece.reshape(-1))
                at = end
        if residual is not None:
            residual.zero_()
        return at

    def _pieces(self, gradient: Tensor, part: LayoutPart) -> tuple[list[Tensor], int]:
        """What travels of a layer, and its number of rows."""
        found = self.source.take(part.name)
        if not bool(gradient.any()):
            return [], 0
        rows, columns = part.matrix
        if found is None or len(found[0]) * (rows + columns) >= rows * columns:
            self.source.sent_whole(part.name, "more rows than factors are worth, or none were seen")
            return [gradient], WHOLE
        outer, inner = found
        scale = _scale(gradient.view(rows, columns), outer, inner)
        if scale is None:
            self.source.sent_whole(part.name, "its gradient is not the product of what passed through the layer")
            return [gradient], WHOLE
        return [outer * scale, inner], len(outer)

    def decode_add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        count, extra = read_head(payload, self.code, layout.numel)
        at = _start(layout)
        if count or extra or payload.numel() < at:
            raise PayloadError(f"a payload of {payload.numel()} bytes has no table of its layers; it was cut")
        rows = payload[HEAD.size : HEAD.size + VALUE * len(layout.parts)].view(torch.int32).tolist()
        sizes = [_size(number, part) for number, part in zip(rows, layout.parts, strict=True)]
        check_length(payload, at + VALUE * sum(sizes))
        values = payload[at:].view(torch.float32)
        check_finite(values, "factor")
        first = 0
        for part, number, size in zip(layout.parts, rows, sizes, strict=True):
            _add(values[first : first + size], number, part, out[part.offset : part.end])
            first += size


def _start(layout: FlatLayout) -> int:
    return HEAD.size + padded(VALUE * len(layout.parts))


def _scale(gradient: Tensor, outer: Tensor, inner: Tensor) -> float | None:
    """The number that makes the product of the factors this gradient: a weight, a share; None if there is none."""
    product = outer.t() @ inner
    square = float(product.square().sum())
    scale = float((product * gradient).sum()) / square if square > 0 else 0.0
    difference = float(product.mul_(scale).sub_(gradient).abs().max())
    return scale if difference <= CLOSE * float(gradient.abs().max()) else None


def _size(rows: int, part: LayoutPart) -> int:
    """Numbers that travel of a layer; raise PayloadError for more rows than make it shorter."""
    if rows == WHOLE:
        return part.numel
    height, width = part.matrix
    if rows < 0 or (rows and rows * (height + width) >= part.numel):
        raise PayloadError(f"a payload holds {rows} rows of layer {part.name!r}, which has {part.numel} elements")
    return rows * (height + width)


def _add(values: Tensor, rows: int, part: LayoutPart, out: Tensor) -> None:
    if rows == WHOLE:
        out.add_(values)
    elif rows:
        height, width = part.matrix
        outer, inner = values[: rows * height].view(rows, height), values[rows * height :].view(rows, width)
        out.view(height, width).addmm_(outer.t(), inner)
