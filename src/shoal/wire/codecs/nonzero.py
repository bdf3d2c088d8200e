"""Elements that are not zero travel, with their places, layer by layer; a layer with too many of them travels whole.

Wang et al., "Nexus: Bringing Efficient and Scalable Training to Deep Learning Frameworks", MASCOTS 2017, send sparse
parameters in a layout that their density chooses. Nothing is lost but the sign of a zero. Do not use it where gradients
have no zeros: it reads them once more and saves nothing.

A number of the table (exact.py) counts a layer's elements that are not zero.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.wire import bits
from shoal.wire.codecs.exact import VALUE, ExactCodec, LayerForm, LayerSize
from shoal.wire.head import ALIGNED
from shoal.wire.layout import LayoutPart
from shoal.wire.sparse_settings import NonzeroSettings


@dataclass(frozen=True)
class NonzeroCodec(NonzeroSettings, ExactCodec):
    """Values that are not zero, and their places."""

    code = 16
    kernel_names = bits.PLACES_KERNELS

    def shorten(self, gradient: Tensor, part: LayoutPart) -> LayerForm | None:
        where = np.flatnonzero(gradient.numpy())
        size = bits.places_size(len(where), part.numel)
        # What aligns the values must be saved too.
        if size + VALUE * len(where) + ALIGNED > VALUE * part.numel:
            return None
        places = np.empty(size, np.uint8)
        bits.write_places(where, part.numel, places)
        return LayerForm(len(where), [gradient[torch.from_numpy(where)]], places)

    def size_of(self, number: int, part: LayoutPart) -> LayerSize:
        if not 0 <= number <= part.numel:
            raise PayloadError(f"a payload says {number} of {part.numel} elements of {part.name!r}; it is foreign")
        return LayerSize(number, bits.places_size(number, part.numel))

    def add_layer(self, number: int, places: bits.Bytes, values: Tensor, part: LayoutPart, out: Tensor) -> None:
        where = bits.read_places(places, number, part.numel)
        # Each place once, so the order of additions does not matter.
        out.index_add_(0, torch.from_numpy(where), values)
