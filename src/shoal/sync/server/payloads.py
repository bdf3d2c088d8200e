"""What a worker's pushes carry and its pulls bring, for all shards of one part of the model.

    pack(updates, weight)      one push for each server
    take(server, …)            what a pull brought: the values of the server's pieces, in `flat`

`ShardPayloads` sends float32 as it is. `CodedPayloads` sends what the plan's codec makes of it, keeps what that left
out for the next push (`residual`), and takes pulls that bring only what has changed. For every push of finite numbers,
sent and kept together are what there was to send and what was kept before: where all are whole numbers, exactly.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.sync.server.changes import FLOAT, take_changes
from shoal.sync.server.cut import ShardCut, ShardPiece, cut_into_shards
from shoal.sync.server.messages import CODED, PARTS, TensorSize, ValuesHead, encode
from shoal.sync.server.rules.base import FloatArray
from shoal.sync.server.shard_codec import name_piece, read_layout, shape_shard
from shoal.wire.codec import GradientCodec, compares
from shoal.wire.codec import State as CodecState
from shoal.wire.encode_context import EncodeContext
from shoal.wire.layout import FlatLayout
from shoal.wire.redeal import folded


@dataclass(frozen=True)
class PackedPush:
    """Of one server."""

    arrays: list[Any]
    """They stay as they are until the next push is packed."""
    weight: float
    is_finite: bool = True


Allocate = Callable[[int], npt.NDArray[np.uint8]]


def allocate_private(size: int) -> npt.NDArray[np.uint8]:
    """Memory of this process alone."""
    return np.zeros(size, np.uint8)


class ShardPayloads:
    """Float32 as it is: the null member."""

    def __init__(self) -> None:
        self.up = self.down = 0
        """Bytes that pushes and pulls would have been as they are."""

    def open(
        self, names: Sequence[str], parameters: Sequence[Tensor], servers: int, allocate: Allocate = allocate_private
    ) -> None:
        """`allocate`: memory that servers reach, if they can."""
        self._names, self._shapes = list(names), [tuple(parameter.shape) for parameter in parameters]
        sizes = [parameter.numel() for parameter in parameters]
        self.cuts: list[ShardCut] = cut_into_shards(sizes, servers)
        self._sent = [allocate(FLOAT * cut.size).view(np.float32) for cut in self.cuts]
        self.landings = [allocate(FLOAT * cut.size).view(np.float32) for cut in self.cuts]
        """By server: where its values are put; not to be read between a request for them and its reply."""
        self._index = [_index_values(cut, sizes) for cut in self.cuts]
        # a parameter that lies whole in one shard is read where it arrives, without a copy
        whole = {piece.tensor: self.landings[s][at] for s, found in enumerate(self._index) for piece, at in found[0]}
        self.flat = [whole.get(number, np.zeros(0, np.float32)) for number in range(len(sizes))]
        """By parameter: the newest values that servers have sent. Of one that lies in one shard, in place."""
        for number, size in enumerate(sizes):
            if number not in whole:
                self.flat[number] = np.zeros(size, np.float32)

    def make_anchors(self) -> list[Tensor]:
        """Return memory for the values that the next push is a change of: that in which new ones arrive, because they
        do only once the push has left."""
        return [torch.from_numpy(flat).view(shape) for flat, shape in zip(self.flat, self._shapes, strict=True)]

    def declare(self) -> list[list[TensorSize]]:
        """By server: the arrays that will be sent, at most."""
        return [[TensorSize("float32", sent.nbytes)] for sent in self._sent]

    def copy_values(self, tensors: Sequence[Tensor]) -> list[list[Any]]:
        """What opens each server's shard: its values, as they are."""
        return [[values] for values in self._copy(tensors)]

    def _copy(self, tensors: Sequence[Tensor], since: Sequence[Tensor] = ()) -> list[FloatArray]:
        flat, before = ([tensor.reshape(-1).numpy() for tensor in each] for each in (tensors, since))
        for cut, sent in zip(self.cuts, self._sent, strict=True):
            cut.pack(flat, sent, before)
        return self._sent

    def pack(self, updates: Sequence[Tensor], weight: float, since: Sequence[Tensor] = ()) -> list[PackedPush]:
        """`since`: what is pushed is the change from these to `updates`."""
        self._count_up()
        return [PackedPush([sent], weight) for sent in self._copy(updates, since)]

    def _count_up(self) -> None:
        self.up += sum(sent.nbytes for sent in self._sent)

    def held(self, server: int) -> int | None:
        """Version of the values in `flat`; None: a pull brings everything anyhow."""
        return None

    def take(self, server: int, head: ValuesHead, arrays: Sequence[Any]) -> None:
        self.down += FLOAT * self.cuts[server].size
        self.take_all(server, head.version, arrays)

    def take_all(self, server: int, version: int, arrays: Sequence[Any]) -> None:
        """All values of a shard; not counted as a pull."""
        cut, landing = self.cuts[server], self.landings[server]
        if len(arrays) != 1 or memoryview(arrays[0]).nbytes != FLOAT * cut.size:
            raise PayloadError(f"server {server} sends {len(arrays)} arrays; its shard has {cut.size} float32")
        found = np.frombuffer(arrays[0], np.float32)
        if found.ctypes.data != landing.ctypes.data:  # it came with the message
            landing[:] = found
        for piece, place in self._index[server][1]:
            self.flat[piece.tensor][piece.start : piece.stop] = landing[place]

    def state(self) -> dict[str, Tensor]:
        """Codec state by `kind.parameter`, in copies."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on with what `state` returned, whatever the shards were then."""


Placed = list[tuple[ShardPiece, slice]]


def _index_values(cut: ShardCut, sizes: Sequence[int]) -> tuple[Placed, Placed]:
    """Where the pieces of a shard lie in its values: whole tensors, and parts of tensors."""
    whole: Placed = []
    parts: Placed = []
    at = 0
    for piece in cut.pieces:
        (whole if piece.size == sizes[piece.tensor] else parts).append((piece, slice(at, at + piece.size)))
        at += piece.size
    return whole, parts


@dataclass
class _ShardMemory:
    """Of one server."""

    layout: FlatLayout
    parts: bytes
    """The same for the server."""
    state: CodecState
    out: Tensor
    version: int = 0
    """Of the values in `flat`."""


class CodedPayloads(ShardPayloads):
    """Through a codec: what it left out waits here."""

    def __init__(self, codec: GradientCodec, seed: int, rank: int) -> None:
        super().__init__()
        self.codec, self._seed, self._rank, self._made = codec, seed, rank, 0
        self._compares = compares(codec)

    def open(
        self, names: Sequence[str], parameters: Sequence[Tensor], servers: int, allocate: Allocate = allocate_private
    ) -> None:
        super().open(names, parameters, servers, allocate)
        # a pull may bring changes alone, so nothing may arrive in place of the values they are changes of
        self.flat = [np.zeros(math.prod(shape), np.float32) for shape in self._shapes]
        self._index = [([], [*whole, *parts]) for whole, parts in self._index]
        self._memory = [self._open_shard(cut, allocate) for cut in self.cuts]

    def make_anchors(self) -> list[Tensor]:
        """Of their own: `flat` is what the server's changes are changes of."""
        return [torch.zeros(shape) for shape in self._shapes]

    def _open_shard(self, cut: ShardCut, allocate: Allocate) -> _ShardMemory:
        shapes = shape_shard(cut, self._names, self._shapes)
        layout = read_layout("this worker", shapes, cut.size)
        out = torch.from_numpy(allocate(self.codec.max_bytes(layout)))
        return _ShardMemory(layout, encode(shapes), self.codec.init_state(layout), out)

    def declare(self) -> list[list[TensorSize]]:
        sizes = super().declare()
        for size, memory in zip(sizes, self._memory, strict=True):
            size += [TensorSize(CODED, len(memory.out)), TensorSize(PARTS, len(memory.parts))]
        return sizes

    def copy_values(self, tensors: Sequence[Tensor]) -> list[list[Any]]:
        """And what lies in it, because the server decodes pushes by that."""
        return [[*own, each.parts] for own, each in zip(super().copy_values(tensors), self._memory, strict=True)]

    def pack(self, updates: Sequence[Tensor], weight: float, since: Sequence[Tensor] = ()) -> list[PackedPush]:
        # random codecs draw by the number of the push
        self._made += 1
        self._count_up()
        found = []
        for server, flat in enumerate(self._copy(updates, since)):
            # before encoding: what waits in the residual keeps the weight it was computed with
            if weight != 1.0:
                flat *= np.float32(weight)
            found.append(self._encode(server, torch.from_numpy(flat)))
        return found

    def _encode(self, server: int, values: Tensor) -> PackedPush:
        memory = self._memory[server]
        if not bool(torch.isfinite(values).all()):
            return PackedPush([], 1.0, is_finite=False)  # the residual stays as it is
        reference = None
        if self._compares:
            self.cuts[server].pack(self.flat, held := np.empty(self.cuts[server].size, np.float32))
            reference = torch.from_numpy(held)
        moment = EncodeContext(self._seed, self._made, self._rank, server, reference)
        length = self.codec.encode_into(values, memory.layout, memory.state, moment, memory.out)
        # 1: the weight is in the numbers already
        return PackedPush([memory.out[:length].numpy()], 1.0)

    def held(self, server: int) -> int | None:
        return self._memory[server].version

    def take(self, server: int, head: ValuesHead, arrays: Sequence[Any]) -> None:
        if head.changed is None:
            super().take(server, head, arrays)
            return
        cut, values = self.cuts[server], self._sent[server]
        self.down += FLOAT * cut.size
        if len(arrays) != bool(head.changed):
            raise PayloadError(f"server {server} sends {len(arrays)} arrays for {head.changed} changed elements")
        if arrays:
            # what was to be encoded is encoded, so its memory is free until the next push
            cut.pack(self.flat, values)
            take_changes(memoryview(arrays[0]), head.changed, values)
            cut.unpack(values, self.flat)
        self._memory[server].version = head.version

    def take_all(self, server: int, version: int, arrays: Sequence[Any]) -> None:
        super().take_all(server, version, arrays)
        self._memory[server].version = version

    def state(self) -> dict[str, Tensor]:
        """What codecs keep of each element, by parameter, whatever shards it lies in."""
        found: dict[str, Tensor] = {}
        for kind, (tensor, start, stop), view in self._views():
            whole = found.setdefault(f"{kind}.{self._names[tensor]}", torch.zeros(self._shapes[tensor]))
            whole.view(-1)[start:stop] = view.reshape(-1)
        return found

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        given = folded(state)  # of an all-reduce, whose workers keep what waits for their part of a sum apart
        for kind, (tensor, start, stop), view in self._views():
            saved = given.get(f"{kind}.{self._names[tensor]}")
            if saved is not None and tuple(saved.shape) == self._shapes[tensor]:
                view.copy_(saved.reshape(-1)[start:stop].view(view.shape))

    def _views(self) -> list[tuple[str, tuple[int, int, int], Tensor]]:
        """(kind, tensor and its elements, the state of those) of every piece that a codec keeps something of."""
        found = []
        for cut, memory in zip(self.cuts, self._memory, strict=True):
            sizes = [self.flat[piece.tensor].size for piece in cut.pieces]
            pieces = {name_piece(self._names[p.tensor], p, n): p for p, n in zip(cut.pieces, sizes, strict=True)}
            for name, view in self.codec.name_state(memory.state, memory.layout).items():
                kind, _, label = name.partition(".")
                piece = pieces.get(label)
                if piece is not None and view.numel() == piece.size:
                    found.append((kind, (piece.tensor, piece.start, piece.stop), view))
        return found
