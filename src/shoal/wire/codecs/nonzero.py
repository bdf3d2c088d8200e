"""Elements that are not zero travel, with their places, layer by layer; a layer with too many of them travels whole.

Wang et al., "Nexus: Bringing Efficient and Scalable Training to Deep Learning Frameworks", MASCOTS 2017, send sparse
parameters in a layout that their density chooses. Nothing is lost but the sign of a zero. Do not use it where gradients
have no zeros: it reads them once more and saves nothing.

    head | elements sent per layer, int32, -1 for all | padding | places of the sparse layers | padding | values
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.wire import bits
from shoal.wire.builtin import NonzeroSettings
from shoal.wire.codec import GradientCodec, State, refuse_non_finite
from shoal.wire.encode_context import EncodeContext
from shoal.wire.head import ALIGNED, HEAD, check_finite, check_length, padded, read_head, write_head
from shoal.wire.layout import FlatLayout, LayoutPart

ALL = -1
VALUE = 4
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class NonzeroCodec(NonzeroSettings, GradientCodec):
    """Exact; never longer than the values and a number a layer."""

    code = 16
    kernel_names = bits.PLACES_KERNELS
    default_feedback = False
    unbiased = True
    fixed_size = False

    def max_bytes(self, layout: FlatLayout) -> int:
        return _start(layout) + VALUE * layout.numel

    def encode_into(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        context: EncodeContext,
        out: Tensor,
        residual: Tensor | None = None,
    ) -> int:
        whole = values if residual is None else residual.add_(values)
        refuse_non_finite(values, layout, residual)
        chosen = [_chosen(whole, part) for part in layout.parts]
        write_head(out, self.code, layout.numel)
        at = _start(layout)
        out[HEAD.size : at].zero_()
        table = out[HEAD.size : HEAD.size + 4 * len(chosen)].view(torch.int32)
        for number, (part, places) in enumerate(zip(layout.parts, chosen, strict=True)):
            table[number] = ALL if places is None else len(places)
            if places is not None:
                size = bits.places_size(len(places), part.numel)
                bits.write_places(places, part.numel, out[at : at + size].numpy())
                at += size
        out[at : padded(at)].zero_()
        end = _write(whole, layout, chosen, out, padded(at))
        if residual is not None:
            residual.zero_()
        return end

    def decode_add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        count, extra = read_head(payload, self.code, layout.numel)
        at = _start(layout)
        if count or extra or payload.numel() < at:
            raise PayloadError(f"a payload of {payload.numel()} bytes has no table of its layers; it was cut")
        counts = payload[HEAD.size : HEAD.size + 4 * len(layout.parts)].view(torch.int32).tolist()
        sizes = [_places_size(number, part) for number, part in zip(counts, layout.parts, strict=True)]
        body = padded(at + sum(sizes))
        sent = [part.numel if n == ALL else n for n, part in zip(counts, layout.parts, strict=True)]
        check_length(payload, body + VALUE * sum(sent))
        values = payload[body:].view(torch.float32)
        check_finite(values, "value")
        first = 0
        for part, number, size, each in zip(layout.parts, counts, sizes, sent, strict=True):
            place, piece = out[part.offset : part.end], values[first : first + each]
            first += each
            if number == ALL:
                place.add_(piece)
                continue
            places = bits.read_places(payload[at : at + size].numpy(), number, part.numel)
            place.index_add_(0, torch.from_numpy(places), piece)
            at += size


def _start(layout: FlatLayout) -> int:
    return HEAD.size + padded(4 * len(layout.parts))


def _chosen(whole: Tensor, part: LayoutPart) -> Places | None:
    """Return the places of a layer to send; None to send all, if that is not longer."""
    places = np.flatnonzero(whole[part.offset : part.end].numpy())
    sparse = bits.places_size(len(places), part.numel) + VALUE * len(places)
    # what aligns the values must be saved too
    return places if sparse + ALIGNED <= VALUE * part.numel else None


def _write(whole: Tensor, layout: FlatLayout, chosen: list[Places | None], out: Tensor, at: int) -> int:
    """The values, one layer after another; returns the payload's length."""
    for part, places in zip(layout.parts, chosen, strict=True):
        values = whole[part.offset : part.end]
        values = values if places is None else values[torch.from_numpy(places)]
        out[at : at + VALUE * len(values)].view(torch.float32).copy_(values)
        at += VALUE * len(values)
    return at


def _places_size(count: int, part: LayoutPart) -> int:
    if count == ALL:
        return 0
    if not 0 <= count <= part.numel:
        raise PayloadError(f"a payload says {count} of {part.numel} elements of {part.name!r}; it is foreign")
    return bits.places_size(count, part.numel)
