"""A codec for some layers, the others as they are: biases and norms are small, matter much and compress badly.

By default tensors of one dimension travel as they are; `least` decides by size instead (0 codes everything), `words` by
name. Hivemind's adaptive compression chooses by size and role in this way. Do not use it to keep large layers out: what
travels as it is, is what you wait for.

    head (count = bytes of the next) | payload of the codec | padding | values as they are
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from shoal.core.errors import PayloadError, UsageError
from shoal.wire.codec import GradientCodec, State
from shoal.wire.codecs.raw import RawCodec
from shoal.wire.head import HEAD, padded, read_head, write_head
from shoal.wire.layout import FlatLayout, LayoutPart
from shoal.wire.moment import EncodeContext


@dataclass(frozen=True)
class PartialCodec(GradientCodec):
    """`codec` for what passes, values as they are for the rest."""

    code = 14
    codec: GradientCodec
    least: int | None = None
    """Elements from which on a tensor is coded; None: from two dimensions on."""
    words: tuple[str, ...] = ()
    """A tensor whose name contains one of these travels as it is."""

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.codec.exact

    def coded(self, part: LayoutPart) -> bool:
        if any(word in part.name for word in self.words):
            return False
        return len(part.shape) >= 2 if self.least is None else part.numel >= self.least

    def divided(self, layout: FlatLayout) -> tuple["LayoutPiece", "LayoutPiece"]:
        """What is coded, and what travels as it is."""
        return _split(self, layout)

    def start(self, layout: FlatLayout) -> State:
        return self.codec.start(self.divided(layout)[0].layout)

    def named(self, state: State, layout: FlatLayout) -> State:
        return self.codec.named(state, self.divided(layout)[0].layout)

    def bound(self, layout: FlatLayout) -> int:
        coded, plain = self.divided(layout)
        return HEAD.size + padded(self.codec.bound(coded.layout)) + RawCodec().bound(plain.layout)

    def pack(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        moment: EncodeContext,
        out: Tensor,
        rest: Tensor | None = None,
    ) -> int:
        if rest is not None:
            raise UsageError("feedback round parts would be lost; put it inside: Parts(Feedback(codec))")
        coded, plain = self.divided(layout)
        count = self.codec.pack(coded.of(values), coded.layout, state, moment, out[HEAD.size :])
        write_head(out, self.code, layout.numel, count)
        start = HEAD.size + padded(count)
        out[HEAD.size + count : start].zero_()
        return start + RawCodec().pack(plain.of(values), plain.layout, {}, moment, out[start:])

    def add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        self._decode(payload, layout, out, fresh=False)

    def put(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        self._decode(payload, layout, out, fresh=True)

    def _decode(self, payload: Tensor, layout: FlatLayout, out: Tensor, fresh: bool) -> None:
        coded, plain = self.divided(layout)
        count, extra = read_head(payload, self.code, layout.numel)
        start = HEAD.size + padded(count)
        if extra or count > self.codec.bound(coded.layout) or payload.numel() < start:
            raise PayloadError(f"a payload of {payload.numel()} bytes says {count} of them are coded; it is foreign")
        for piece, codec, data in (
            (coded, self.codec, payload[HEAD.size : HEAD.size + count]),
            (plain, RawCodec(), payload[start:]),
        ):
            if piece.run is not None:
                (codec.put if fresh else codec.add)(data, piece.layout, out[piece.run])
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
    coded = tuple(part for part in layout.parts if rule.coded(part))
    plain = tuple(part for part in layout.parts if not rule.coded(part))
    return _piece(coded), _piece(plain)


def _piece(parts: tuple[LayoutPart, ...]) -> LayoutPiece:
    layout = FlatLayout.of([(part.name, part.shape) for part in parts])
    start = parts[0].offset if parts else 0
    joined = all(part.offset == start + at.offset for part, at in zip(parts, layout.parts, strict=True))
    return LayoutPiece(parts, layout, slice(start, start + layout.numel) if joined else None)
