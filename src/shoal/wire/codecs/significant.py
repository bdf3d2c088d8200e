"""Changes that are significant for the parameter they change travel; the others add up until they are.

    |what has gathered| > threshold * max(|value|, root mean square of its layer)

Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014 ("significantly modified"
entries); Hsieh et al., "Gaia: Geo-Distributed Machine Learning Approaching LAN Speeds", NSDI 2017, who compare each
change with its value. The mean of a layer stands in for values near zero, all of whose changes would else be
significant. Do not use it where steps are large beside the values: everything travels then.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.wire.codecs.filter import FilterCodec
from shoal.wire.layout import FlatLayout
from shoal.wire.sparse_settings import SignificantSettings


@dataclass(frozen=True)
class SignificantCodec(SignificantSettings, FilterCodec):
    """With nothing to compare with, everything that is not zero is significant."""

    code = 19

    def choose(self, changes: Tensor, values: Tensor | None, layout: FlatLayout) -> Tensor:
        if values is None:
            return changes != 0
        limits = values.abs()
        for part in layout.parts:
            layer = limits[part.offset : part.end]
            if layer.numel():
                layer.clamp_(min=float(torch.linalg.vector_norm(layer)) / layer.numel() ** 0.5)
        # Strictly above: of a layer of zeros, no change of zero is significant.
        return changes.abs() > limits.mul_(self.threshold)
