"""How parameters are cut into shards: balanced, whatever their sizes.

A tensor larger than a fraction of a shard is cut into pieces; small tensors stay whole and are packed. The largest
pieces are placed first, each on the shard that has the least so far (Graham, "Bounds on multiprocessing timing
anomalies", 1969), so no shard has more than the mean and one piece. The cut follows from the sizes alone: every worker
computes the same one without a message.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shoal.core.errors import UsageError
from shoal.sync.server.rules.base import FloatArray

FINENESS = 16
"""Pieces that a shard would have if all were as large as they may be."""
LEAST_PIECE = 1024
"""Elements below which a tensor is never cut: a piece costs a copy of its own."""


@dataclass(frozen=True, order=True)
class ShardPiece:
    """Elements `start` to `stop` of a flattened tensor."""

    tensor: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class ShardCut:
    """The pieces of one shard, in the order they lie in it."""

    pieces: tuple[ShardPiece, ...]

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)

    def pack(self, tensors: Sequence[FloatArray], flat: FloatArray, since: Sequence[FloatArray] = ()) -> None:
        """Copy this shard's pieces of flat tensors to `flat`; of `since`, what they have changed by."""
        at = 0
        for piece in self.pieces:
            place, part = slice(at, at + piece.size), slice(piece.start, piece.stop)
            if since:
                np.subtract(tensors[piece.tensor][part], since[piece.tensor][part], out=flat[place])
            else:
                flat[place] = tensors[piece.tensor][part]
            at += piece.size

    def unpack(self, flat: FloatArray, tensors: Sequence[FloatArray]) -> None:
        """Copy them back."""
        at = 0
        for piece in self.pieces:
            tensors[piece.tensor][piece.start : piece.stop] = flat[at : at + piece.size]
            at += piece.size


def cut_into_shards(sizes: Sequence[int], shards: int) -> list[ShardCut]:
    """Cut tensors of these numbers of elements into `shards` shards; some are empty if there is too little."""
    if shards < 1 or any(size < 0 for size in sizes):
        raise UsageError(f"{len(sizes)} tensors in {shards} shards; there must be 1 shard or more")
    largest = max(LEAST_PIECE, -(-sum(sizes) // (shards * FINENESS)))
    pieces = [piece for number, size in enumerate(sizes) for piece in _cut_tensor(number, size, largest)]
    loads: list[tuple[int, int]] = [(0, shard) for shard in range(shards)]
    placed: list[list[ShardPiece]] = [[] for _ in range(shards)]
    # equal sizes in the order of places, so that all workers cut alike
    for piece in sorted(pieces, key=lambda piece: (-piece.size, piece)):
        load, shard = heapq.heappop(loads)
        placed[shard].append(piece)
        heapq.heappush(loads, (load + piece.size, shard))
    return [ShardCut(tuple(_joined(sorted(mine)))) for mine in placed]


def _cut_tensor(number: int, size: int, largest: int) -> list[ShardPiece]:
    count = -(-size // largest)
    edges = [size * place // count for place in range(count + 1)] if count else []
    return [ShardPiece(number, a, b) for a, b in pairwise(edges)]


def _joined(pieces: list[ShardPiece]) -> list[ShardPiece]:
    """Pieces that lie beside each other in a tensor become one."""
    found: list[ShardPiece] = []
    for piece in pieces:
        if found and (found[-1].tensor, found[-1].stop) == (piece.tensor, piece.start):
            piece = ShardPiece(piece.tensor, found.pop().start, piece.stop)
        found.append(piece)
    return found
