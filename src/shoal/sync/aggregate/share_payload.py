"""A share of a bucket as bytes, with which of its layers somebody has a gradient for.

kind (1) | (3 zeros) | bytes of the codec's payload (4) | which layers it has, a bit each | padding | payload |
padding | what travels as it is
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.sync.aggregate.gather import CODED, NON_FINITE, NOTHING
from shoal.sync.aggregate.presence import Marks, no_marks, read_marks, write_marks
from shoal.sync.aggregate.shares import HEAD, RAW, BucketCut, BucketShare
from shoal.wire.codec import GradientCodec, State, aligned
from shoal.wire.encode_context import EncodeContext
from shoal.wire.head import padded
from shoal.wire.wrappers.parts import LayoutPiece


def pack_share(
    codec: GradientCodec, made: BucketCut, share: BucketShare, values: tuple[Tensor, Tensor], state: State,
    moment: EncodeContext,
    present: Sequence[bool], out: Tensor,
) -> int:  # fmt: skip
    """Write one share as bytes; return how many."""
    start = made.prefix
    write_empty(NOTHING, out[:start])
    if not any(present):
        return start
    length = codec.encode_into(values[0], share.layout, state, moment, out[start:])
    out[: HEAD.size].copy_(torch.frombuffer(bytearray(HEAD.pack(CODED, length)), dtype=torch.uint8))
    write_marks(present, out[HEAD.size : start])
    end = start + padded(length)
    out[start + length : end].zero_()
    return end + RAW.encode_into(values[1], share.plain_layout, {}, moment, out[end:])


def add_share(
    codec: GradientCodec,
    rank: int,
    payload: Tensor,
    made: BucketCut,
    share: BucketShare,
    out: tuple[Tensor, Tensor],
    fresh: bool,
) -> Marks:
    """Add what worker `rank` sent of `share` to `out`, or write it if `fresh`; return which layers it has."""
    start, parts = made.prefix, len(made.layout.parts)
    kind, length = HEAD.unpack(payload[: HEAD.size].numpy().tobytes()) if payload.numel() >= start else (-1, 0)
    end = start + padded(length)
    stop = end + RAW.max_bytes(share.plain_layout)
    # `length` is the sender's word, so what it announces must be there
    if kind not in (NOTHING, CODED, NON_FINITE) or (kind == CODED and payload.numel() < stop):
        raise PayloadError(
            f"worker {rank}: unknown payload type {kind} with {length} coded of {payload.numel()} bytes; "
            "peers must run the same Shoal and plan"
        )
    if kind != CODED:
        if fresh:
            for each in out:
                each.zero_()
        return no_marks(parts, kind == NON_FINITE)
    try:
        for one, data, layout, sums in (
            (codec, payload[start : start + length], share.layout, out[0]),
            (RAW, payload[end:stop], share.plain_layout, out[1]),
        ):
            (one.decode_into if fresh else one.decode_add)(aligned(data), layout, sums)
    except PayloadError as error:
        raise PayloadError(f"worker {rank}: {error}") from None
    return read_marks(payload[HEAD.size : start], parts)


def write_empty(kind: int, out: Tensor) -> None:
    """Write a payload that consists of its prefix only."""
    out.zero_()
    out[: HEAD.size].copy_(torch.frombuffer(bytearray(HEAD.pack(kind, 0)), dtype=torch.uint8))


def place_of(piece: LayoutPiece, out: Tensor) -> Tensor:
    """Return where a decoded piece is added up: in its place, or in a new tensor if it does not lie in one run."""
    return out[piece.run] if piece.run is not None else torch.empty(piece.layout.numel)


def put_back(piece: LayoutPiece, found: Tensor, out: Tensor) -> None:
    """Copy a decoded piece from the new tensor of `place_of` to its places."""
    if piece.run is None:
        for part, at in zip(piece.parts, piece.layout.parts, strict=True):
            out[part.offset : part.end] = found[at.offset : at.end]
