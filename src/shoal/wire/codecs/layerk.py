"""The largest elements of each layer: the sparsifier of Deep Gradient Compression.

Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training", ICLR 2018. As
topk, but layer by layer, so that layers with small gradients are heard too; `dgc(...)` puts momentum correction, local
clipping, factor masking and warm-up round it. Do not use it with many small layers: each sends at least one element.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from shoal.wire import choice
from shoal.wire.codec import refuse
from shoal.wire.codecs.sparse import Chosen, Sparse
from shoal.wire.layout import Layout
from shoal.wire.moment import Moment


@dataclass(frozen=True)
class LayerK(Sparse):
    """About `ratio` of every layer's elements."""

    code = 11

    def most(self, layout: Layout) -> int:
        return sum(choice.most(choice.wanted(self.ratio, p.numel), p.numel) for p in layout.parts)

    def choose(self, values: Tensor, layout: Layout, moment: Moment, rest: Tensor | None) -> Chosen:
        found = []
        for part in layout.parts:
            left = None if rest is None else rest[part.offset : part.end]
            count = choice.wanted(self.ratio, part.numel)
            here = choice.largest(values[part.offset : part.end], left, count, part.offset, moment.words()[0])
            if here is None:
                refuse(values, layout, rest)
            found.append(here)
        return Chosen(np.concatenate([p for p, _ in found]), np.concatenate([v for _, v in found]))
