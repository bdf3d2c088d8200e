"""The gradient of a linear layer as the two factors it is the product of: its batch of inputs, and of output gradients.

Chilimbi et al., "Project Adam: Building an Efficient and Scalable Deep Learning Training System", OSDI 2014, and Zhang
et al., "Poseidon: An Efficient Communication Architecture for Distributed Deep Learning on GPU Clusters", ATC 2017
("sufficient factors"): for b rows and an m x n layer b (m + n) numbers travel instead of m n. The factors are
multiplied before they leave: a layer whose product is not the gradient, whatever the reason, travels as it is, exact.
Do not use it for batches of many rows.

A number of the table (exact.py) counts a layer's rows; its values are the output gradients, then the inputs.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.core.term import INTERNAL
from shoal.wire.bits import Bytes
from shoal.wire.codecs.exact import ExactCodec, LayerForm, LayerSize
from shoal.wire.layout import LayoutPart

# About ten roundings of a float32: sums in another order differ by this much.
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
        """Do nothing."""


@dataclass(frozen=True)
class FactorCodec(ExactCodec):
    """Exact to float precision."""

    name: ClassVar[str] = "factors"
    code = 17

    source: FactorSource = field(default_factory=NoFactors, metadata=INTERNAL, compare=False)

    def shorten(self, gradient: Tensor, part: LayoutPart) -> LayerForm | None:
        # Taken even if the gradient is zero: pairs that stayed would count among the next exchange's.
        found = self.source.take(part.name)
        if not bool(gradient.any()):
            return LayerForm(0, [])
        rows, columns = part.matrix
        if found is None or len(found[0]) * (rows + columns) >= rows * columns:
            self.source.sent_whole(part.name, "more rows than factors are worth, or none were seen")
            return None
        outer, inner = found
        scale = _scale(gradient.view(rows, columns), outer, inner)
        if scale is None:
            self.source.sent_whole(part.name, "its gradient is not the product of what passed through the layer")
            return None
        return LayerForm(len(outer), [outer * scale, inner])

    def size_of(self, number: int, part: LayoutPart) -> LayerSize:
        height, width = part.matrix
        # Also before anything is multiplied: rows beyond these would make a payload longer than the layer.
        if number < 0 or (number and number * (height + width) >= part.numel):
            raise PayloadError(f"a payload holds {number} rows of layer {part.name!r}, which has {part.numel} elements")
        return LayerSize(number * (height + width))

    def add_layer(self, number: int, places: Bytes, values: Tensor, part: LayoutPart, out: Tensor) -> None:
        if number:
            height, width = part.matrix
            outer, inner = values[: number * height].view(number, height), values[number * height :].view(number, width)
            out.view(height, width).addmm_(outer.t(), inner)


def _scale(gradient: Tensor, outer: Tensor, inner: Tensor) -> float | None:
    """The number that makes the product of the factors this gradient: a weight, a share; None if there is none."""
    product = outer.t() @ inner
    square = float(product.square().sum())
    # Least squares for one number: a mean over the batch, or this worker's share of it, scales the whole product.
    scale = float((product * gradient).sum()) / square if square > 0 else 0.0
    difference = float(product.mul_(scale).sub_(gradient).abs().max())
    return scale if difference <= CLOSE * float(gradient.abs().max()) else None
