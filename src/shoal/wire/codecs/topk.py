"""The largest elements of a bucket travel, the others wait.

Aji & Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; with memory, Stich et al.,
"Sparsified SGD with Memory", NeurIPS 2018. A sample says where to look, so that one pass finds them. Do not use it
without error feedback, nor with dense gradients on a fast network: choosing costs more than sending.
"""

from dataclasses import dataclass

from torch import Tensor

from shoal.wire import choice, shares
from shoal.wire.codec import refuse
from shoal.wire.codecs.sparse import ChosenElements, SparseCodec
from shoal.wire.layout import FlatLayout
from shoal.wire.moment import EncodeContext
from shoal.wire.push import VelocityState


@dataclass(frozen=True)
class TopKCodec(SparseCodec):
    """`ratio` of a bucket's elements."""

    code = 10

    def most(self, layout: FlatLayout) -> int:
        return shares.of_all(self.ratio, layout).most

    def choose(
        self,
        values: Tensor,
        layout: FlatLayout,
        moment: EncodeContext,
        rest: Tensor | None,
        push: VelocityState | None = None,
    ) -> ChosenElements:
        chosen = choice.largest(values, rest, shares.of_all(self.ratio, layout), moment.step, push)
        if chosen is None:
            refuse(values, layout, rest)
        return ChosenElements(*chosen)
