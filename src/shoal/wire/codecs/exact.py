"""The common part of exact codecs: each layer travels in a short form, or as it is where that is not longer.

    head | a number per layer, int32, -1 for a layer as it is | padding | places, by layer | padding | values, by layer

What the number counts, and whether there are places, is the member's. Nothing is lost, so nothing waits.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.wire.bits import Bytes
from shoal.wire.codecs.checked import CheckedCodec
from shoal.wire.encode_context import EncodeContext
from shoal.wire.head import HEAD, check_finite, check_length, padded, read_head
from shoal.wire.layout import FlatLayout, LayoutPart

AS_IT_IS = -1
"""Stands in the table for a layer all of whose elements travel."""
VALUE = 4
"""Bytes of a value."""


class LayerForm(NamedTuple):
    """What travels of a layer."""

    number: int
    pieces: list[Tensor]
    """Values, one tensor after another."""
    places: Bytes | None = None


class LayerSize(NamedTuple):
    """What a number of the table stands for."""

    values: int
    places: int = 0
    """Bytes."""


@dataclass(frozen=True)
class ExactCodec(CheckedCodec):
    """Base of codecs that lose nothing; a payload is never longer than the values and a number a layer."""

    fixed_size = False

    @abstractmethod
    def shorten(self, gradient: Tensor, part: LayoutPart) -> LayerForm | None:
        """Return the short form of a layer; None where it would not be shorter."""

    @abstractmethod
    def size_of(self, number: int, part: LayoutPart) -> LayerSize:
        """Return how much of a payload is a layer's short form; raise PayloadError for a number never written."""

    @abstractmethod
    def add_layer(self, number: int, places: Bytes, values: Tensor, part: LayoutPart, out: Tensor) -> None:
        """Add a layer that travelled in its short form to `out`; raise PayloadError for places never written."""

    def max_bytes(self, layout: FlatLayout) -> int:
        return _table_end(layout) + VALUE * layout.numel

    def encode_whole(self, whole: Tensor, layout: FlatLayout, context: EncodeContext, out: Tensor, keep: bool) -> int:
        at = _table_end(layout)
        out[HEAD.size : at].zero_()
        forms = [self._form(whole[part.offset : part.end], part) for part in layout.parts]
        table = _table(out, layout)
        for index, form in enumerate(forms):
            table[index] = form.number
            if form.places is not None:
                out[at : at + len(form.places)].copy_(torch.from_numpy(form.places))
                at += len(form.places)
        # Padding is zero, so that equal gradients make equal payloads whatever the memory held.
        out[at : padded(at)].zero_()
        end = _write(forms, out, padded(at))
        if keep:
            whole.zero_()
        return end

    def _form(self, gradient: Tensor, part: LayoutPart) -> LayerForm:
        return self.shorten(gradient, part) or LayerForm(AS_IT_IS, [gradient])

    def decode_add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        count, extra = read_head(payload, self.code, layout.numel)
        at = _table_end(layout)
        # Fields that this format does not use must be zero, or a changed bit would pass unnoticed.
        if count or extra or payload.numel() < at:
            raise PayloadError(f"a payload of {payload.numel()} bytes has no table of its layers; it was cut")
        numbers = _table(payload, layout).tolist()
        sizes = [self._size(number, part) for number, part in zip(numbers, layout.parts, strict=True)]
        body = padded(at + sum(size.places for size in sizes))
        # The table is the sender's word: lengths are checked before anything is read by it.
        check_length(payload, body + VALUE * sum(size.values for size in sizes))
        values, first = payload[body:].view(torch.float32), 0
        check_finite(values, "value")
        for part, number, size in zip(layout.parts, numbers, sizes, strict=True):
            place, sent = out[part.offset : part.end], values[first : first + size.values]
            if number == AS_IT_IS:
                place.add_(sent)
            else:
                self.add_layer(number, payload[at : at + size.places].numpy(), sent, part, place)
            at, first = at + size.places, first + size.values

    def _size(self, number: int, part: LayoutPart) -> LayerSize:
        return LayerSize(part.numel) if number == AS_IT_IS else self.size_of(number, part)


def _table_end(layout: FlatLayout) -> int:
    return HEAD.size + padded(VALUE * len(layout.parts))


def _table(payload: Tensor, layout: FlatLayout) -> Tensor:
    return payload[HEAD.size : HEAD.size + VALUE * len(layout.parts)].view(torch.int32)


def _write(forms: list[LayerForm], out: Tensor, at: int) -> int:
    """Write the values of all layers from `at` on; return the payload's length."""
    for form in forms:
        for piece in form.pieces:
            end = at + VALUE * piece.numel()
            out[at:end].view(torch.float32).copy_(piece.reshape(-1))
            at = end
    return at
