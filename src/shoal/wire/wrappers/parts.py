"""Code some layers and send the others as they are: biases and norms are small, matter much and compress badly.

By default tensors of one dimension travel as they are; `least` decides by size instead (0 codes everything), `words` by
name. Hivemind's adaptive compression chooses by size and role in this way. Do not use it to keep large layers out: what
travels as it is, is what you wait for.

    head (count = bytes of the next) | payload of the codec | padding | values as they are
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from shoal.core.errors import PayloadError, UsageError
from shoal.wire.codec import GradientCodec, State
from shoal.wire.codecs.raw import RawCodec
from shoal.wire.encode_context import EncodeContext
from shoal.wire.head import HEAD, padded, read_head, write_head
from shoal.wire.layout import FlatLayout, LayoutPart


@dataclass(frozen=True)
class PartialCodec(GradientCodec):
    """Encodes the layers that pass the rule and sends the others as they are."""

    code = 14
    codec: GradientCodec
    least: int | None = None
    """Elements from which on a tensor is coded; None: from two dimensions on."""
    words: tuple[str, ...] = ()
    """A tensor whose name contains one of these travels as it is."""

    @property
    def fixed_size(self) -> bool:  # type: ignore[override]
        return self.codec.fixed_size

    @property
    def divisible(self) -> bool:
        return self.codec.dense

    def get_ratio(self) -> float | None:
        return self.codec.get_ratio()

    def with_ratio(self, ratio: float) -> "PartialCodec":
        return replace(self, codec=self.codec.with_ratio(ratio))

    def is_coded(self, part: LayoutPart) -> bool:
        if any(word in part.name for word in self.words):
            return False
        return len(part.shape) >= 2 if self.least is None else part.numel >= self.least

    def split_layout(self, layout: FlatLayout) -> tuple["LayoutPiece", "LayoutPiece"]:
        """Return the layers that are coded, and those that travel as they are."""
        return _split(self, layout)

    def init_state(self, layout: FlatLayout) -> State:
        return self.codec.init_state(self.split_layout(layout)[0].layout)

    def name_state(self, state: State, layout: FlatLayout) -> State:
        return self.codec.name_state(state, self.split_layout(layout)[0].layout)

    def max_bytes(self, layout: FlatLayout) -> int:
        coded, plain = self.split_layout(layout)
        return HEAD.size + padded(self.codec.max_bytes(coded.layout)) + RawCodec().max_bytes(plain.layout)

    def encode_into(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        context: EncodeContext,
        out: Tensor,
        residual: Tensor | None = None,
    ) -> int:
        if residual is not None:
            raise UsageError(
                "error feedback around PartialCodec would be lost; put it inside: PartialCodec(ErrorFeedback(codec))"
            )
        coded, plain = self.split_layout(layout)
        if context.reference is not None:
            context = replace(context, reference=coded.of(context.reference))
        count = self.codec.encode_into(coded.of(values), coded.layout, state, context, out[HEAD.size :])
        write_head(out, self.code, layout.numel, count)
        start = HEAD.size + padded(count)
        out[HEAD.size + count : start].zero_()
        return start + RawCodec().encode_into(plain.of(values), plain.layout, {}, context, out[start:])

    def decode_add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        self._decode(payload, layout, out, fresh=False)

    def decode_into(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        self._decode(payload, layout, out, fresh=True)

    def _decode(self, payload: Tensor, layout: FlatLayout, out: Tensor, fresh: bool) -> None:
        coded, plain = self.split_layout(layout)
        count, extra = read_head(payload, self.code, layout.numel)
        start = HEAD.size + padded(count)
        # The count is the sender's word, and says where the rest begins.
        if extra or count > self.codec.max_bytes(coded.layout) or payload.numel() < start:
            raise PayloadError(f"a payload of {payload.numel()} bytes says {count} of them are coded; it is foreign")
        for piece, codec, data in (
            (coded, self.codec, payload[HEAD.size : HEAD.size + count]),
            (plain, RawCodec(), payload[start:]),
        ):
            # Matrices come first in a bucket (`bucket.lay_out`), so both pieces are usually runs and nothing is copied.
            if piece.run is not None:
                (codec.decode_into if fresh else codec.decode_add)(data, piece.layout, out[piece.run])
                continue
            found = codec.decode(data, piece.layout)
            for part, at in zip(piece.parts, piece.layout.parts, strict=True):
                place = out[part.offset : part.end]
                (place.copy_ if fresh else place.add_)(found[at.offset : at.end])


@dataclass(frozen=True)
class LayoutPiece:
    """Some parts of a layout as a layout of their own; a view where they lie side by side."""

    parts: tuple[LayoutPart, ...]
    layout: FlatLayout
    run: slice | None

    def of(self, values: Tensor) -> Tensor:
        if self.run is not None:
            return values[self.run]
        return torch.cat([values[part.offset : part.end] for part in self.parts])


@lru_cache(maxsize=4096)
def _split(rule: PartialCodec, layout: FlatLayout) -> tuple[LayoutPiece, LayoutPiece]:
    coded = tuple(part for part in layout.parts if rule.is_coded(part))
    plain = tuple(part for part in layout.parts if not rule.is_coded(part))
    return _piece(coded), _piece(plain)


def _piece(parts: tuple[LayoutPart, ...]) -> LayoutPiece:
    layout = FlatLayout.of([(part.name, part.shape) for part in parts])
    start = parts[0].offset if parts else 0
    joined = all(part.offset == start + at.offset for part, at in zip(parts, layout.parts, strict=True))
    return LayoutPiece(parts, layout, slice(start, start + layout.numel) if joined else None)
