"""The contract of a codec: a pair of pure functions with explicit state, over one flat float32 tensor.

    state = codec.start(layout)                            named tensors; empty for most
    payload, state = codec.encode(values, layout, state)   pure: nothing given is changed
    values = codec.decode(payload, layout)

and the same without allocation, for the hot path:

    length = codec.pack(values, layout, state, moment, out, rest)   writes `out`, updates `state` in place
    codec.add(payload, layout, out)                                 out += decoded

`rest` makes error feedback possible in a single pass: if given, what is encoded is `values + rest`, and `rest` becomes
what of it did not travel. A codec refuses NaN and infinity by the layer's name, and a payload it cannot have made
(PayloadError) before it allocates more than `layout` asks for; `out` is then worth nothing. Not thread-safe: state
belongs to one bucket of one worker.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import fields, is_dataclass
from typing import ClassVar, NoReturn

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import ShoalError
from shoal.wire import kernels
from shoal.wire.layout import FlatLayout
from shoal.wire.moment import EncodeContext

State = dict[str, Tensor]


class GradientCodec(ABC):
    """A way to write a flat tensor of gradients as bytes."""

    code: ClassVar[int]
    """Stands in every payload's head."""
    feedback: ClassVar[bool] = True
    """Whether error feedback is on unless the plan says otherwise: right for biased codecs."""
    unbiased: ClassVar[bool] = False
    """Whether the mean of decoded values over seeds is the value itself (without feedback)."""
    exact: ClassVar[bool] = True
    """Whether every payload is `bound` bytes long; otherwise it may be shorter."""
    compiled: ClassVar[tuple[str, ...]] = ()
    """Names of the kernels that it calls itself, beside `largest`, which refuses what is not finite."""

    def start(self, layout: FlatLayout) -> State:
        return {}

    def named(self, state: State, layout: FlatLayout) -> State:
        """The state as views named `kind.layer`: what a checkpoint holds, whatever buckets the layers lie in."""
        return {
            f"{kind}.{part.name}": tensor[part.offset : part.end].view(part.shape)
            for kind, tensor in state.items()
            for part in layout.parts
        }

    @abstractmethod
    def bound(self, layout: FlatLayout) -> int:
        """The most bytes a payload can have."""

    @abstractmethod
    def pack(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        moment: EncodeContext,
        out: Tensor,
        rest: Tensor | None = None,
    ) -> int: ...

    @abstractmethod
    def add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None: ...

    def put(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        """As `add` to zeros, whatever `out` holds; dense codecs write without reading it."""
        out.zero_()
        self.add(payload, layout, out)

    def encode(
        self,
        values: Tensor,
        layout: FlatLayout | None = None,
        state: State | None = None,
        moment: EncodeContext | None = None,
    ) -> tuple[Tensor, State]:
        """A payload of any tensor, and the state after it."""
        flat = values.detach().float().contiguous().view(-1)
        layout = layout or FlatLayout.of([("values", tuple(values.shape))])
        state = {name: t.clone() for name, t in (self.start(layout) if state is None else state).items()}
        out = torch.zeros(self.bound(layout), dtype=torch.uint8)
        length = self.pack(flat, layout, state, moment or EncodeContext(), out)
        return out[:length], state

    def decode(self, payload: Tensor, layout: FlatLayout) -> Tensor:
        out = torch.empty(layout.numel)
        self.put(aligned(payload), layout, out)
        return out


def kernels_of(codec: GradientCodec) -> set[str]:
    """Names of all kernels that a codec, and those it is made of, may call: what to compile before it is used."""
    inner: list[object] = [getattr(codec, field.name) for field in fields(codec)] if is_dataclass(codec) else []
    found = {"largest", *codec.compiled}
    return found.union(*(kernels_of(each) for each in inner if isinstance(each, GradientCodec)))


def aligned(payload: Tensor) -> Tensor:
    """The same bytes where kernels may read them as wider numbers."""
    return payload.clone() if payload.data_ptr() % 16 else payload


def refuse_non_finite(values: Tensor, layout: FlatLayout, rest: Tensor | None = None) -> None:
    """Raise, with the layer's name, if a value is NaN or infinite."""
    if rest is None and kernels.fast() and math.isfinite(magnitude(values)):
        return
    for tensor in (values, rest):
        if tensor is not None and not bool((good := torch.isfinite(tensor)).all()):
            name = layout.name_at(int((~good).nonzero()[0]))
            raise ShoalError(
                f"the gradient of {name!r} holds NaN or infinity, which no codec carries; "
                "lower the learning rate, clip, or train without a codec"
            )


def magnitude(values: Tensor) -> float:
    """The largest magnitude; infinite or NaN if any value is. `values` are flat float32 on the host."""
    if not kernels.fast():
        return float(values.abs().max()) if values.numel() else 0.0
    return float(np.int32(kernels.get("largest")(values.numpy())).view(np.float32))


def refuse(values: Tensor, layout: FlatLayout, rest: Tensor | None) -> NoReturn:
    """Say why a kernel could not encode this."""
    refuse_non_finite(values, layout, rest)
    names = ", ".join(part.name for part in layout.parts[:3])
    raise ShoalError(f"gradients of {names} are too large to add up in float32; clip them or lower the learning rate")
