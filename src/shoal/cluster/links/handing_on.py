"""One worker's bytes for everybody, handed on from each to the next: every link carries them once.

0 ──> 1 ──> 2 ──> 3        piece by piece, so that the last is done one latency per worker after the first
"""

import numpy as np
import numpy.typing as npt

from shoal.cluster.links.frames import CHUNK, Payload, pack
from shoal.cluster.links.gathering import chunks
from shoal.cluster.links.messages import Chunk
from shoal.cluster.links.refused import Refused
from shoal.cluster.links.task import Send, Task, View

Bytes = npt.NDArray[np.uint8]


class HandingOn(Task):
    """`memory` is what the worker at place `root` of the view hands on, and where the others take it."""

    kind = "broadcast"

    def __init__(self, memory: Bytes, root: int = 0) -> None:
        super().__init__(len(memory))
        self.memory, self.root = memory, root
        self._left = chunks(len(memory))

    def begin(self, view: View, send: Send) -> None:
        self._view, self._send = view, send
        if view.place == self.root:
            if view.size > 1:
                for index in range(self._left):
                    send(view.after, 0, index, pack(self.memory[index * CHUNK : (index + 1) * CHUNK], "uint8"))
            self.done.set()

    def arrived(self, sender: int, chunk: Chunk, payload: Payload) -> None:
        place = self.memory[chunk.index * CHUNK : (chunk.index + 1) * CHUNK]
        due = chunks(len(self.memory)) - self._left
        if len(place) != payload.size or sender != self._view.before or chunk.index != due:
            raise Refused(f"worker {sender} hands on piece {chunk.index} with {payload.size} bytes, not {len(place)}")
        place[:] = np.frombuffer(payload.frame.buffer, np.uint8)
        if self._view.after != self._view.ranks[self.root]:
            self._send(self._view.after, 0, chunk.index, payload)
        self._left -= 1
        if not self._left:
            self.done.set()

    def missing(self) -> list[int]:
        return [self._view.before] if hasattr(self, "_view") and self._view.place != self.root else []
