"""The largest elements of each layer: the sparsifier of Deep Gradient Compression.

Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training", ICLR 2018. As
topk, but layer by layer, so that layers with small gradients are heard too; `dgc(...)` puts momentum correction, local
clipping, factor masking and warm-up around it. Do not use it with many small layers: each sends at least one element.
"""

from dataclasses import dataclass

from torch import Tensor

from shoal.wire import selection
from shoal.wire.codec import refuse
from shoal.wire.codecs.sparse import ChosenElements, SparseCodec
from shoal.wire.encode_context import EncodeContext
from shoal.wire.layout import FlatLayout
from shoal.wire.selection import VelocityState


@dataclass(frozen=True)
class LayerKCodec(SparseCodec):
    """`ratio` of every layer's elements."""

    name = "layerk"
    code = 11

    def max_elements(self, layout: FlatLayout) -> int:
        return selection.count_by_layer(self.ratio, layout).most

    def choose(
        self,
        values: Tensor,
        layout: FlatLayout,
        context: EncodeContext,
        residual: Tensor | None,
        push: VelocityState | None = None,
    ) -> ChosenElements:
        chosen = selection.select_largest(
            # The step shifts the sample, so that no line is left out of it for good.
            values,
            residual,
            selection.count_by_layer(self.ratio, layout),
            context.step,
            push,
        )
        if chosen is None:
            refuse(values, layout, residual)
        return ChosenElements(*chosen)
