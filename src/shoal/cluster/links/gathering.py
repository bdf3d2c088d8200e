"""Everybody's bytes, for everybody: each sends its own straight to all others, one latency for what is small."""

import math
from collections.abc import Sequence

import numpy as np

from shoal.cluster.links.frames import CHUNK, Payload, pack
from shoal.cluster.links.messages import Chunk
from shoal.cluster.links.refused import Refused
from shoal.cluster.links.task import Send, Task, View

LARGEST = 1 << 30
"""Bytes of one worker; more is refused before memory is taken for it."""


class Gathering(Task):
    """`result` holds everybody's bytes in order of rank."""

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
        """The same without a copy: only to be read."""
        return [self.data if rank == self._rank else self._parts[rank] for rank in self._ranks]

    def begin(self, view: View, send: Send) -> None:
        if len(self.data) > self.limit:
            raise Refused(f"a gather of {len(self.data)} bytes; at most {self.limit} go at once")
        self._ranks, self._rank = view.ranks, view.rank
        self._wanted = dict.fromkeys(view.others, 1)
        raw = np.frombuffer(self.data, np.uint8)
        for index in range(chunks(len(raw))):
            payload = pack(raw[index * CHUNK : (index + 1) * CHUNK], "uint8")
            for peer in view.others:
                send(peer, 0, index, payload)
        if not view.others:
            self.done.set()

    def arrived(self, sender: int, chunk: Chunk, payload: Payload) -> None:
        """Memory grows as bytes arrive, not by what was announced; a link keeps the order of a task's chunks."""
        if chunk.total > self.limit:
            raise Refused(f"worker {sender} gathers {chunk.total} bytes; at most {self.limit} go at once")
        if sender not in self._parts:
            self._parts[sender], self._wanted[sender] = bytearray(), chunks(chunk.total)
        part = self._parts[sender]
        start, due = len(part), chunks(chunk.total) - self._wanted[sender]
        if chunk.index != due or payload.size != min(CHUNK, chunk.total - start) or not self._wanted[sender]:
            raise Refused(
                f"worker {sender} sends piece {chunk.index} of {chunk.total} bytes with {payload.size}; "
                f"piece {due} was due"
            )
        part += payload.frame.buffer
        self._wanted[sender] -= 1
        if not any(self._wanted.values()):
            self.done.set()

    def missing(self) -> list[int]:
        return [rank for rank, count in self._wanted.items() if count]


def chunks(size: int) -> int:
    """Pieces of `size` bytes; nothing is one empty piece, so that it is heard."""
    return max(1, math.ceil(size / CHUNK))
