"""The largest elements of a bucket travel, the others wait.

Aji & Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; with memory, Stich et al.,
"Sparsified SGD with Memory", NeurIPS 2018. The threshold is estimated from a sample, so that about `ratio` of the
elements travel, and never more than 1.25 times that. Do not use it without error feedback, nor with dense gradients
on a fast network: choosing costs more than sending.
"""

from dataclasses import dataclass

from torch import Tensor

from shoal.wire import choice
from shoal.wire.codec import refuse
from shoal.wire.codecs.sparse import Chosen, Sparse
from shoal.wire.layout import Layout
from shoal.wire.moment import Moment


@dataclass(frozen=True)
class TopK(Sparse):
    """About `ratio` of a bucket's elements."""

    code = 10

    def most(self, layout: Layout) -> int:
        return choice.most(choice.wanted(self.ratio, layout.numel), layout.numel)

    def choose(self, values: Tensor, layout: Layout, moment: Moment, rest: Tensor | None) -> Chosen:
        count = choice.wanted(self.ratio, layout.numel)
        chosen = choice.largest(values, rest, count, 0, moment.words()[0])
        if chosen is None:
            refuse(values, layout, rest)
        return Chosen(*chosen)
