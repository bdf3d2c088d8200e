"""How pushes are written as bytes: as flat float32, or by the plan's codec, with error feedback at the worker.

    worker    layout of its part of a shard ──> OpenRequest.parts        the same layout at both ends
              weight * update + residual ── encode ──> payload           what it does not say is the next residual
    server    payload ── check, decode ──> float32 ──> ParameterShard    the shard knows of no codec

The server has its codec from its launcher, by the plan, and never from a worker. Every push is decoded before it is
counted, so a shard's journal and replicas hold plain numbers. A worker's share of the samples is in the numbers before
they are encoded: what waits in the residual keeps the weight it was computed with.

Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014 (filters); Seide et al. 2014
(error feedback). Do not use a codec on one host: bytes between its processes cost less than encoding.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from shoal.core.errors import PayloadError
from shoal.sync.server.cut import ShardCut, ShardPiece
from shoal.sync.server.messages import PartShape, decode_parts
from shoal.sync.server.rules.base import FloatArray
from shoal.wire import bits
from shoal.wire.codec import GradientCodec, aligned, kernels_of
from shoal.wire.layout import FlatLayout

MOST_DIMENSIONS = 16


def name_piece(name: str, piece: ShardPiece, size: int) -> str:
    """Of a whole tensor its name; a part of one says which elements, so that names in a shard differ."""
    return name if piece.size == size else f"{name}[{piece.start}:{piece.stop}]"


def shape_shard(cut: ShardCut, names: Sequence[str], shapes: Sequence[Sequence[int]]) -> list[PartShape]:
    """The pieces of a shard as codecs see them. A part of a matrix is a matrix of one row, because codecs treat vectors
    otherwise."""
    found = []
    for piece in cut.pieces:
        name, shape = names[piece.tensor], tuple(shapes[piece.tensor])
        if piece.size != math.prod(shape):
            shape = (1, piece.size) if len(shape) > 1 else (piece.size,)
        found.append(PartShape(name_piece(name, piece, math.prod(shapes[piece.tensor])), shape))
    return found


def read_layout(member: str, parts: Sequence[PartShape], size: int) -> FlatLayout:
    """The layout that a worker names for a shard of `size` elements. PayloadError: it is none."""
    for part in parts:
        if len(part.shape) > MOST_DIMENSIONS or math.prod(part.shape) > size:
            raise PayloadError(f"{member} names a part of shape {part.shape[:4]} in a shard of {size} elements")
    layout = FlatLayout.of([(part.name, part.shape) for part in parts])
    if layout.numel != size:
        raise PayloadError(f"{member} names parts of {layout.numel} elements for a shard of {size}")
    return layout


class FloatReader:
    """Pushes are as many float32 as the shard has."""

    layout: FlatLayout | None = None
    tells_changes = False
    """Whether pulls may leave out what has not changed."""

    def read(self, member: str, arrays: Sequence[Any], is_finite: bool) -> FloatArray:
        if len(arrays) != 1 or len(memoryview(arrays[0])) % 4:
            raise PayloadError(f"{member} sends {len(arrays)} arrays; a shard takes one of float32")
        return np.frombuffer(arrays[0], np.float32)


class CodecReader(FloatReader):
    """Pushes are payloads of a codec."""

    def __init__(self, codec: GradientCodec, layout: FlatLayout) -> None:
        self._codec, self._layout, self.layout = codec, layout, layout
        self._most = codec.max_bytes(layout)
        # what such a codec leaves out is zero in an update; of others no element would stay as it was
        self.tells_changes = kernels_of(codec).issuperset(bits.PLACES_KERNELS)

    def read(self, member: str, arrays: Sequence[Any], is_finite: bool) -> FloatArray:
        """`is_finite`: False where the worker had numbers that no codec carries, and sends none."""
        if not is_finite and not arrays:
            return np.full(self._layout.numel, np.nan, np.float32)  # the shard refuses it, and counts it
        if len(arrays) != 1 or not is_finite:
            raise PayloadError(f"{member} sends {len(arrays)} arrays; a push of a codec is one, or none if not finite")
        if not 0 < (found := memoryview(arrays[0]).nbytes) <= self._most:
            raise PayloadError(f"{member} pushes a payload of {found} bytes; the codec makes 1 to {self._most} of them")
        values = torch.empty(self._layout.numel)
        # a copy, because a member could change its own memory between checks and use
        payload = torch.frombuffer(bytearray(arrays[0]), dtype=torch.uint8)
        self._codec.decode_into(aligned(payload), self._layout, values)
        return values.numpy()


def make_reader(codec: GradientCodec | None, member: str, parts: Sequence[Any], size: int) -> FloatReader:
    """Of a shard that a member opens. `parts`: what lies in it, where the plan has a codec."""
    if len(parts) != (codec is not None):
        said = "no codec" if codec is None else "a codec"
        raise PayloadError(f"{member} opens a shard with {1 + len(parts)} arrays where the plan has {said}")
    if codec is None:
        return FloatReader()
    return CodecReader(codec, read_layout(member, decode_parts(bytes(parts[0]), member), size))
