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
from shoal.wire import bits
from shoal.wire.codec import GradientCodec, State
from shoal.wire.codecs.raw import RawCodec
from shoal.wire.head import HEAD, padded, read_head, write_head
from shoal.wire.layout import FlatLayout
from shoal.wire.moment import EncodeContext
from shoal.wire.push import VelocityState

SPARSE, DENSE = 0, 1


class ChosenElements(NamedTuple):
    """Places that ascend, and the values there."""

    places: npt.NDArray[np.int64]
    values: npt.NDArray[np.float32]


@dataclass(frozen=True)
class SparseCodec(GradientCodec):
    """Sends what `choose` chooses."""

    exact = False
    compiled = ("select_largest", "add_at", *bits.PLACES_KERNELS)
    ratio: float
    values: GradientCodec = field(default_factory=RawCodec)
    """How the chosen values are written."""

    def at(self, ratio: float) -> Self:
        """The same with another ratio, for a warm-up."""
        return replace(self, ratio=ratio)

    @abstractmethod
    def choose(
        self,
        values: Tensor,
        layout: FlatLayout,
        moment: EncodeContext,
        rest: Tensor | None,
        push: VelocityState | None = None,
    ) -> ChosenElements:
        """With `rest`: adds `values` to it, or the velocity they push, and takes out what is chosen.

        Refuses what is not finite.
        """

    @abstractmethod
    def most(self, layout: FlatLayout) -> int:
        """The most elements that are ever chosen."""

    def bound(self, layout: FlatLayout) -> int:
        return min(self._sparse_size(self.most(layout), layout), self._dense_size(layout))

    def _start(self, count: int, layout: FlatLayout) -> int:
        return HEAD.size + padded(bits.places_size(count, layout.numel))

    def _sparse_size(self, count: int, layout: FlatLayout) -> int:
        return self._start(count, layout) + self.values.bound(FlatLayout.flat(count))

    def _dense_size(self, layout: FlatLayout) -> int:
        return HEAD.size + self.values.bound(layout)

    def pack(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        moment: EncodeContext,
        out: Tensor,
        rest: Tensor | None = None,
    ) -> int:
        return self.send(values, layout, moment, out, rest)

    def send(
        self,
        values: Tensor,
        layout: FlatLayout,
        moment: EncodeContext,
        out: Tensor,
        rest: Tensor | None,
        push: VelocityState | None = None,
    ) -> int:
        """As `pack`; with `push`, of a velocity."""
        if _dense(self, layout):
            return self._send_all(values, layout, moment, out, rest, push)
        chosen = self.choose(values, layout, moment, rest, push)
        count = len(chosen.places)
        size = HEAD.size + bits.places_size(count, layout.numel)
        start, data = padded(size), out.numpy()
        write_head(data, self.code, layout.numel, count, SPARSE)
        bits.write_places(chosen.places, layout.numel, data[HEAD.size : size])
        data[size:start] = 0
        if isinstance(self.values, RawCodec):
            return start + self.values.write(chosen.values, data[start:])
        left = None if rest is None else torch.zeros(count)
        sent = torch.from_numpy(chosen.values)
        length = self.values.pack(sent, FlatLayout.flat(count), {}, moment, out[start:], left)
        if rest is not None and left is not None:
            rest[torch.from_numpy(chosen.places)] += left
        return start + length

    def _send_all(
        self,
        values: Tensor,
        layout: FlatLayout,
        moment: EncodeContext,
        out: Tensor,
        rest: Tensor | None,
        push: VelocityState | None,
    ) -> int:
        write_head(out, self.code, layout.numel, extra=DENSE)
        values = values if push is None else push.gain(values)
        length = self.values.pack(values, layout, {}, moment, out[HEAD.size :], rest)
        if push is not None:
            push.lose()
        return HEAD.size + length

    def add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        count, extra = read_head(payload, self.code, layout.numel)
        if extra == DENSE:
            self.values.add(payload[HEAD.size :], layout, out)
            return
        places = self._places(payload, layout, count, extra)
        bits.add_at(places, self._values(payload[self._start(count, layout) :], count), out.numpy())

    def _values(self, payload: Tensor, count: int) -> npt.NDArray[np.float32]:
        if isinstance(self.values, RawCodec):
            return self.values.read(payload, count)
        values = torch.zeros(count)
        self.values.add(payload, FlatLayout.flat(count), values)
        return values.numpy()

    def _places(self, payload: Tensor, layout: FlatLayout, count: int, extra: int) -> npt.NDArray[np.int64]:
        if extra != SPARSE or count > self.most(layout) or payload.numel() < self._start(count, layout):
            raise PayloadError(
                f"a payload of {payload.numel()} bytes says {count} of {layout.numel} elements (format {extra}); "
                f"at most {self.most(layout)} are sent"
            )
        data = payload[HEAD.size : HEAD.size + bits.places_size(count, layout.numel)].numpy()
        return bits.read_places(data, count, layout.numel)


@lru_cache(maxsize=4096)
def _dense(codec: SparseCodec, layout: FlatLayout) -> bool:
    """Whether all elements are no more bytes than the most that may be chosen."""
    return codec._dense_size(layout) <= codec._sparse_size(codec.most(layout), layout)
