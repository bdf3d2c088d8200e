"""The largest elements of a bucket travel, the others wait.

Aji & Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; with memory, Stich et al.,
"Sparsified SGD with Memory", NeurIPS 2018. A sample says where to look, so that one pass finds them. Do not use it
without error feedback, nor with dense gradients on a fast network: choosing costs more than sending.
"""

from dataclasses import dataclass

from torch import Tensor

from shoal.wire import selection
from shoal.wire.codec import refuse
from shoal.wire.codecs.sparse import ChosenElements, SparseCodec
from shoal.wire.encode_context import EncodeContext
from shoal.wire.layout import FlatLayout
from shoal.wire.selection import VelocityState
from shoal.wire.sparse_settings import TopKSettings


@dataclass(frozen=True)
class TopKCodec(TopKSettings, SparseCodec):
    """`ratio` of a bucket's elements."""

    code = 10

    def max_elements(self, layout: FlatLayout) -> int:
        return selection.count_overall(self.ratio, layout).most

    def choose(
        self,
        values: Tensor,
        layout: FlatLayout,
        context: EncodeContext,
        residual: Tensor | None,
        push: VelocityState | None = None,
    ) -> ChosenElements:
        # Over the whole bucket: layers with small gradients may wait for long, and `layerk` is for where that hurts.
        chosen = selection.select_largest(
            values, residual, selection.count_overall(self.ratio, layout), context.step, push
        )
        if chosen is None:
            refuse(values, layout, residual)
        return ChosenElements(*chosen)
