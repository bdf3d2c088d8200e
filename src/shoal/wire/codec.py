"""The contract of a codec: a pair of pure functions with explicit state, over one flat float32 tensor.

    state = codec.init_state(layout)                       named tensors; empty for most codecs
    payload, state = codec.encode(values, layout, state)   changes nothing it is given
    values = codec.decode(payload, layout)

and the same without allocation, for the hot path:

    length = codec.encode_into(values, layout, state, context, out, residual)   writes `out`, updates `state` in place
    codec.decode_add(payload, layout, out)                                      out += decoded

A codec is a frozen dataclass. Its fields are its arguments in a plan; its class attributes declare what the rest of
Shoal must know of it. `shoal.testing.CodecCase` checks all of this contract.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Literal, NoReturn
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import ShoalError
from shoal.wire import kernels
from shoal.wire.encode_context import EncodeContext
from shoal.wire.layout import FlatLayout
from shoal.wire.settings import CodecSettings

State = dict[str, Tensor]

FIRST_OWN_CODE = 128
"""Codes below are written out in the codecs of this package."""


class GradientCodec(CodecSettings, ABC):
    """A way to write a flat tensor of gradients as bytes.

    It is not thread-safe: a state belongs to one bucket of one worker. It refuses NaN and infinity with the layer's
    name (`refuse_non_finite`), and a payload it cannot have made with PayloadError, before it allocates more than
    `layout` asks for; `out` is then undefined.
    """

    code: ClassVar[int]
    """Stands in every payload's head; derived from `name` where a codec does not set it."""
    default_feedback: ClassVar[bool] = True
    """Whether error feedback is on by default, as biased codecs need it."""
    unbiased: ClassVar[bool] = False
    """Whether, without feedback, the mean of decoded values over seeds is the value itself."""
    fixed_size: ClassVar[bool] = True
    """Whether every payload has exactly `max_bytes`; otherwise it may be shorter."""
    dense: ClassVar[bool] = False
    """Whether a payload covers every element and a sum may be encoded again, which two-stage aggregation needs."""
    summed_as: ClassVar[Literal["", "cast", "factors"]] = ""
    """How an engine adds payloads up without decoding them: as 16-bit floats, as factors of matrices, or not at all."""
    kernel_names: ClassVar[tuple[str, ...]] = ()
    """Kernels that it calls itself, beside `largest`, with which `refuse_non_finite` looks at the values."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # By name, so that packages need no common list of numbers; built-in codecs and wrappers set their own.
        if not hasattr(cls, "code") and hasattr(cls, "name"):
            cls.code = FIRST_OWN_CODE + crc32(cls.name.encode()) % FIRST_OWN_CODE

    @property
    def summable(self) -> bool:
        """Return whether payloads of several workers can be summed without decoding."""
        return bool(self.summed_as)

    @property
    def divisible(self) -> bool:
        """Return whether a bucket may be cut into shares that are encoded, summed by an owner and encoded again."""
        return False

    def make_codec(self) -> "GradientCodec":
        return self

    def without_feedback(self) -> "GradientCodec":
        """Return the codec inside error feedback, or itself."""
        return self

    def summed_bytes(self, layout: FlatLayout) -> int | None:
        """Return how many bytes of a bucket are summed; None for codecs that are not `summable`."""
        return None

    def get_ratio(self) -> float | None:
        """Return the share of elements that travel; None for codecs that say something of all."""
        return None

    def with_ratio(self, ratio: float) -> "GradientCodec":
        """Return the same codec with another ratio, or itself if it has none."""
        return self

    def for_sum_of(self, workers: int) -> "GradientCodec":
        """Return the codec for the sum of `workers` gradients; differs where an argument is in units of a gradient."""
        return self

    def init_state(self, layout: FlatLayout) -> State:
        """Return what the codec remembers from step to step, before the first one."""
        return {}

    def name_state(self, state: State, layout: FlatLayout) -> State:
        """Return the state as views named `kind.layer`: checkpoints hold it whatever buckets the layers lie in."""
        return {
            f"{kind}.{part.name}": tensor[part.offset : part.end].view(part.shape)
            for kind, tensor in state.items()
            for part in layout.parts
        }

    @abstractmethod
    def max_bytes(self, layout: FlatLayout) -> int:
        """Return the most bytes a payload can have."""

    @abstractmethod
    def encode_into(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        context: EncodeContext,
        out: Tensor,
        residual: Tensor | None = None,
    ) -> int:
        """Write a payload to the start of `out`, bytes aligned to 16, and return its length.

        With `residual`, encode `values + residual` and leave in `residual` what did not travel: error feedback then
        needs no second pass.
        """

    @abstractmethod
    def decode_add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        """Add the decoded payload to `out`; raise PayloadError for bytes that `encode_into` cannot have written."""

    def decode_into(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        """Write the decoded payload to `out`, whatever it holds; dense codecs do so without reading it."""
        out.zero_()
        self.decode_add(payload, layout, out)

    def encode(
        self,
        values: Tensor,
        layout: FlatLayout | None = None,
        state: State | None = None,
        context: EncodeContext | None = None,
    ) -> tuple[Tensor, State]:
        """Return a payload of any tensor, and the state after it."""
        # Codecs know one dtype and one shape; callers of the hot path already have them.
        flat = values.detach().float().contiguous().view(-1)
        layout = layout or FlatLayout.of([("values", tuple(values.shape))])
        state = {name: t.clone() for name, t in (self.init_state(layout) if state is None else state).items()}
        out = torch.zeros(self.max_bytes(layout), dtype=torch.uint8)
        length = self.encode_into(flat, layout, state, context or EncodeContext(), out)
        return out[:length], state

    def decode(self, payload: Tensor, layout: FlatLayout) -> Tensor:
        """Return the values of a payload."""
        out = torch.empty(layout.numel)
        self.decode_into(aligned(payload), layout, out)
        return out


def kernels_of(codec: GradientCodec) -> set[str]:
    """Return the names of all kernels that a codec, and those it is made of, may call."""
    inner: list[object] = [getattr(codec, field.name) for field in fields(codec)] if is_dataclass(codec) else []
    found = {"largest", *codec.kernel_names}
    return found.union(*(kernels_of(each) for each in inner if isinstance(each, GradientCodec)))


def compares(codec: GradientCodec) -> bool:
    """Whether a codec, or one it is made of, compares changes with the values that they change."""
    inner: list[object] = [getattr(codec, field.name) for field in fields(codec)] if is_dataclass(codec) else []
    return codec.compares or any(compares(each) for each in inner if isinstance(each, GradientCodec))


def aligned(payload: Tensor) -> Tensor:
    """Return the same bytes at an address where kernels may read them as wider numbers."""
    # A payload may begin anywhere in a received frame.
    return payload.clone() if payload.data_ptr() % 16 else payload


def refuse_non_finite(values: Tensor, layout: FlatLayout, residual: Tensor | None = None) -> None:
    """Raise, with the layer's name, if a value is NaN or infinite."""
    # one compiled pass in the usual case; only an error needs to know which layer it was
    if residual is None and kernels.fast() and math.isfinite(magnitude(values)):
        return
    for tensor in (values, residual):
        if tensor is not None and not bool((good := torch.isfinite(tensor)).all()):
            name = layout.name_at(int((~good).nonzero()[0]))
            raise ShoalError(
                f"the gradient of {name!r} holds NaN or infinity, which no codec carries; "
                "lower the learning rate, clip, or train without a codec"
            )


def magnitude(values: Tensor) -> float:
    """Return the largest magnitude of flat float32 values on the host; infinite or NaN if any value is."""
    if not kernels.fast():
        return float(values.abs().max()) if values.numel() else 0.0
    # Compared as bits: whole numbers of the same order, which the compiler can vectorise even with NaN among them.
    return float(np.int32(kernels.get("largest")(values.numpy())).view(np.float32))


def refuse(values: Tensor, layout: FlatLayout, residual: Tensor | None) -> NoReturn:
    """Raise with the reason why a kernel could not encode this."""
    refuse_non_finite(values, layout, residual)
    names = ", ".join(part.name for part in layout.parts[:3])
    # All values are finite here, so it was a sum in the kernel that overflowed.
    raise ShoalError(f"gradients of {names} are too large to add up in float32; clip them or lower the learning rate")
