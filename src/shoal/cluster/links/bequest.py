"""One worker's bytes for some others, of a length that only it knows: the state for newcomers, straight to each.

Everybody else of the view has no part in it. What leaves is copied piece by piece, so the giver may go on at once.
"""

from collections.abc import Sequence

import numpy as np

from shoal.cluster.links.frames import CHUNK, Payload, pack
from shoal.cluster.links.gathering import chunks
from shoal.cluster.links.messages import Chunk
from shoal.cluster.links.refused import Refused
from shoal.cluster.links.task import Send, Task, View

CHANNEL = 4095
"""Its own: givers and takers hand in nothing else there, and those in between nothing at all."""


class Giving(Task):
    """Done as soon as everything is on its way."""

    kind = "bequest"
    alike = False
    channel = CHANNEL

    def __init__(self, data: bytes, takers: Sequence[int]) -> None:
        super().__init__(len(data))
        self.data, self.takers = data, takers

    def begin(self, view: View, send: Send) -> None:
        raw = np.frombuffer(self.data, np.uint8)
        for index in range(chunks(len(raw))):
            payload = pack(raw[index * CHUNK : (index + 1) * CHUNK], "uint8")
            for taker in self.takers:
                send(taker, 0, index, payload)
        self.done.set()

    def arrived(self, sender: int, chunk: Chunk, payload: Payload) -> None:
        raise Refused(f"worker {sender} sends a state to the one that gives it")

    def missing(self) -> list[int]:
        return []


class Taking(Task):
    """`data` is what `giver` sent, once it is whole; more than `limit` bytes are refused before memory is taken."""

    kind = "bequest"
    alike = False
    channel = CHANNEL

    def __init__(self, giver: int, limit: int) -> None:
        super().__init__(0)
        self.giver, self.limit = giver, limit
        self.data = bytearray()
        self._left = -1

    def begin(self, view: View, send: Send) -> None:
        pass

    def arrived(self, sender: int, chunk: Chunk, payload: Payload) -> None:
        start = chunk.index * CHUNK
        if sender != self.giver or chunk.total > self.limit or payload.size != min(CHUNK, chunk.total - start):
            raise Refused(
                f"worker {sender} sends piece {chunk.index} of a state of {chunk.total} bytes; worker {self.giver} "
                f"may send {self.limit}"
            )
        if self._left < 0:
            self.data, self._left = bytearray(chunk.total), chunks(chunk.total)
        self.data[start : start + payload.size] = payload.frame.buffer
        self._left -= 1
        if not self._left:
            self.done.set()

    def missing(self) -> list[int]:
        return [self.giver]
