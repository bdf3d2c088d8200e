"""The common part of sparsifiers: some elements travel, with their places; the others wait in the residual.

    head (count; extra = 0) | places, as Elias and Fano write them | padding | payload of the values' codec
    head (extra = 1)        | payload of the values' codec for all elements, when that is smaller

Wang et al. ("Nexus", 2017) choose the format by density in the same way. A member says which elements travel.
"""

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.core.term import INTERNAL
from shoal.wire import bits
from shoal.wire.codec import GradientCodec, State
from shoal.wire.codecs.raw import RawCodec
from shoal.wire.encode_context import EncodeContext
from shoal.wire.head import HEAD, padded, read_head, write_head
from shoal.wire.layout import FlatLayout
from shoal.wire.selection import VelocityState

SPARSE, DENSE = 0, 1


class ChosenElements(NamedTuple):
    """Ascending places, and the values there."""

    places: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]


@dataclass(frozen=True)
class SparseCodec(GradientCodec):
    """Base of the sparsifiers: sends the elements that `choose` returns."""

    fixed_size = False
    kernel_names = ("select_largest", "add_at", *bits.PLACES_KERNELS)
    ratio: float
    values: GradientCodec = field(default_factory=RawCodec, metadata=INTERNAL)
    """How the chosen values are written."""

    def get_ratio(self) -> float:
        return self.ratio

    def with_ratio(self, ratio: float) -> Self:
        return replace(self, ratio=ratio)

    @abstractmethod
    def choose(
        self,
        values: Tensor,
        layout: FlatLayout,
        context: EncodeContext,
        residual: Tensor | None,
        push: VelocityState | None = None,
    ) -> ChosenElements:
        """Return the elements of `values` that travel; refuse values that are not finite.

        With `residual`, add `values` to it, choose from the sum and take out what was chosen. With `push`, accumulate
        `values` into the velocity and add that instead.
        """

    @abstractmethod
    def max_elements(self, layout: FlatLayout) -> int:
        """Return the most elements that are ever chosen; a payload with more is refused."""

    def max_bytes(self, layout: FlatLayout) -> int:
        return min(self._sparse_size(self.max_elements(layout), layout), self._dense_size(layout))

    def _start(self, count: int, layout: FlatLayout) -> int:
        return HEAD.size + padded(bits.places_size(count, layout.numel))

    def _sparse_size(self, count: int, layout: FlatLayout) -> int:
        return self._start(count, layout) + self.values.max_bytes(FlatLayout.flat(count))

    def _dense_size(self, layout: FlatLayout) -> int:
        return HEAD.size + self.values.max_bytes(layout)

    def encode_into(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        context: EncodeContext,
        out: Tensor,
        residual: Tensor | None = None,
    ) -> int:
        return self.encode_velocity(values, layout, context, out, residual)

    def encode_velocity(
        self,
        values: Tensor,
        layout: FlatLayout,
        context: EncodeContext,
        out: Tensor,
        residual: Tensor | None,
        push: VelocityState | None = None,
    ) -> int:
        """As `encode_into`; with `push`, encode what the velocity adds up to instead of `values`."""
        # Decided by sizes alone, not by what was chosen, so that encoding needs no second try.
        if _dense(self, layout):
            return self._encode_all(values, layout, context, out, residual, push)
        chosen = self.choose(values, layout, context, residual, push)
        count = len(chosen.places)
        size = HEAD.size + bits.places_size(count, layout.numel)
        start, data = padded(size), out.numpy()
        write_head(data, self.code, layout.numel, count, SPARSE)
        bits.write_places(chosen.places, layout.numel, data[HEAD.size : size])
        data[size:start] = 0  # what lies between must not depend on what the memory held before
        if isinstance(self.values, RawCodec):
            return start + self.values.write(chosen.values, data[start:])
        # a codec of the values loses something too: that goes back to where the values came from
        left = None if residual is None else torch.zeros(count)
        sent = torch.from_numpy(chosen.values)
        length = self.values.encode_into(sent, FlatLayout.flat(count), {}, context, out[start:], left)
        if residual is not None and left is not None:
            residual[torch.from_numpy(chosen.places)] += left
        return start + length

    def _encode_all(
        self,
        values: Tensor,
        layout: FlatLayout,
        context: EncodeContext,
        out: Tensor,
        residual: Tensor | None,
        push: VelocityState | None,
    ) -> int:
        write_head(out, self.code, layout.numel, extra=DENSE)
        values = values if push is None else push.accumulate(values)
        length = self.values.encode_into(values, layout, {}, context, out[HEAD.size :], residual)
        if push is not None:
            # All elements have travelled, so no velocity is kept back.
            push.mask()
        return HEAD.size + length

    def decode_add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        count, extra = read_head(payload, self.code, layout.numel)
        if extra == DENSE:
            self.values.decode_add(payload[HEAD.size :], layout, out)
            return
        places = self._places(payload, layout, count, extra)
        bits.add_at(places, self._values(payload[self._start(count, layout) :], count), out.numpy())

    def _values(self, payload: Tensor, count: int) -> npt.NDArray[np.float32]:
        if isinstance(self.values, RawCodec):
            return self.values.read(payload, count)
        values = torch.zeros(count)
        self.values.decode_add(payload, FlatLayout.flat(count), values)
        return values.numpy()

    def _places(self, payload: Tensor, layout: FlatLayout, count: int, extra: int) -> npt.NDArray[np.int64]:
        if extra != SPARSE or count > self.max_elements(layout) or payload.numel() < self._start(count, layout):
            raise PayloadError(
                f"a payload of {payload.numel()} bytes says {count} of {layout.numel} elements (format {extra}); "
                f"at most {self.max_elements(layout)} are sent"
            )
        data = payload[HEAD.size : HEAD.size + bits.places_size(count, layout.numel)].numpy()
        return bits.read_places(data, count, layout.numel)


@lru_cache(maxsize=4096)
def _dense(codec: SparseCodec, layout: FlatLayout) -> bool:
    """Return whether all elements take no more bytes than the most that may be chosen, with their places."""
    return codec._dense_size(layout) <= codec._sparse_size(codec.max_elements(layout), layout)
