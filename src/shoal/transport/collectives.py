"""Collectives over a mesh: all-gather, all-to-all and chain broadcast."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shoal.transport.messages import CHUNK, ChunkHeader, FramePayload, FrameRefused, pack
from shoal.transport.tasks import CollectiveTask, MeshView, Send

LARGEST = 1 << 30
"""Bytes of one worker; more is refused before memory is taken for it."""


class AllGather(CollectiveTask):
    """Every worker gets the bytes of all; `result` has them in order of rank."""

    kind = "gather"
    alike = False

    def __init__(self, data: bytes | bytearray, limit: int = LARGEST) -> None:
        super().__init__(len(data))
        self.data, self.limit = data, limit
        self._parts: dict[int, bytearray] = {}
        self._wanted: dict[int, int] = {}
        self._ranks: Sequence[int] = ()
        self._rank = -1

    @property
    def result(self) -> list[bytes]:
        return [bytes(buffer) for buffer in self.buffers]

    @property
    def buffers(self) -> list[bytes | bytearray]:
        """Return the same without a copy; do not write to them."""
        return [self.data if rank == self._rank else self._parts[rank] for rank in self._ranks]

    def begin(self, view: MeshView, send: Send) -> None:
        if len(self.data) > self.limit:
            raise FrameRefused(f"a gather of {len(self.data)} bytes; at most {self.limit} go at once")
        self._ranks, self._rank = view.ranks, view.rank
        self._wanted = dict.fromkeys(view.others, 1)
        # All pieces are handed over at once; each link's window decides when they leave.
        raw = np.frombuffer(self.data, np.uint8)
        for index in range(chunks(len(raw))):
            payload = pack(raw[index * CHUNK : (index + 1) * CHUNK], "uint8")
            for peer in view.others:
                send(peer, 0, index, payload)
        if not view.others:
            self.done.set()

    def arrived(self, sender: int, chunk: ChunkHeader, payload: FramePayload) -> None:
        """Append a piece. Memory grows as bytes arrive, not by the announced total, which may be a lie."""
        if chunk.total > self.limit:
            raise FrameRefused(f"worker {sender} gathers {chunk.total} bytes; at most {self.limit} go at once")
        # The first piece tells the size; before it a peer counts as one piece that is missing.
        if sender not in self._parts:
            self._parts[sender], self._wanted[sender] = bytearray(), chunks(chunk.total)
        part = self._parts[sender]
        start, due = len(part), chunks(chunk.total) - self._wanted[sender]
        if chunk.index != due or payload.size != min(CHUNK, chunk.total - start) or not self._wanted[sender]:
            raise FrameRefused(
                f"worker {sender} sends piece {chunk.index} of {chunk.total} bytes with {payload.size}; "
                f"piece {due} was due"
            )
        # Pieces of a link arrive in order, so they are appended and need no place.
        part += payload.frame.buffer
        self._wanted[sender] -= 1
        if not any(self._wanted.values()):
            self.done.set()

    def missing(self) -> list[int]:
        return [rank for rank, count in self._wanted.items() if count]


def chunks(size: int) -> int:
    """Return the number of pieces of `size` bytes; zero bytes are one empty piece, so that receivers notice it."""
    return max(1, math.ceil(size / CHUNK))


class AllToAll(AllGather):
    """Worker i gets row i of every worker's `pieces`; `result` has them in order of rank."""

    kind = "deal"

    def __init__(self, pieces: npt.NDArray[np.uint8], limit: int) -> None:
        super().__init__(b"", limit)
        self.pieces, self.total = pieces, pieces.shape[1]

    def begin(self, view: MeshView, send: Send) -> None:
        if view.size != len(self.pieces) or self.total > self.limit:
            raise FrameRefused(
                f"{len(self.pieces)} pieces of {self.total} bytes among {view.size} workers; "
                f"there is one for each, of at most {self.limit}"
            )
        self._ranks, self._rank = view.ranks, view.rank
        self._wanted = dict.fromkeys(view.others, 1)
        # A copy, because the caller may write to its rows once the task is done while `result` is still in use.
        self.data = bytearray(self.pieces[view.place])
        for index in range(chunks(self.total)):  # one piece to each in turn, so that no receiver waits for the others
            for place, peer in enumerate(view.ranks):
                if peer != view.rank:
                    send(peer, 0, index, pack(self.pieces[place, index * CHUNK : (index + 1) * CHUNK], "uint8"))
        if not view.others:
            self.done.set()


Bytes = npt.NDArray[np.uint8]


class ChainBroadcast(CollectiveTask):
    """Every worker passes on what it receives; `memory` is sent by the worker at place `root`, filled at the others."""

    kind = "broadcast"

    def __init__(self, memory: Bytes, root: int = 0) -> None:
        super().__init__(len(memory))
        self.memory, self.root = memory, root
        self._left = chunks(len(memory))

    def begin(self, view: MeshView, send: Send) -> None:
        self._view, self._send = view, send
        if view.place == self.root:
            if view.size > 1:
                for index in range(self._left):
                    send(view.after, 0, index, pack(self.memory[index * CHUNK : (index + 1) * CHUNK], "uint8"))
            self.done.set()

    def arrived(self, sender: int, chunk: ChunkHeader, payload: FramePayload) -> None:
        place = self.memory[chunk.index * CHUNK : (chunk.index + 1) * CHUNK]
        due = chunks(len(self.memory)) - self._left
        if len(place) != payload.size or sender != self._view.before or chunk.index != due:
            raise FrameRefused(
                f"worker {sender} hands on piece {chunk.index} with {payload.size} bytes, not {len(place)}"
            )
        place[:] = np.frombuffer(payload.frame.buffer, np.uint8)
        # Passed on at once, piece by piece: a chain of p workers then takes one broadcast plus p - 2 pieces, not p - 1
        # of them.
        if self._view.after != self._view.ranks[self.root]:
            self._send(self._view.after, 0, chunk.index, payload)
        self._left -= 1
        if not self._left:
            self.done.set()

    def missing(self) -> list[int]:
        return [self._view.before] if hasattr(self, "_view") and self._view.place != self.root else []
