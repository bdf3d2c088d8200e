"""A member's state for one that is none yet, and what changes in it afterwards: a row of items, each some bytes.

    member      Lending(0, state, newcomer) … Lending(1, a step, newcomer) … each done as soon as it is on its way
    newcomer    Borrowing(member)           items come in order, and stay when a view ends all that is under way

Nobody else has a part in it. The newcomer is in no view, so for the length of a loan it takes that of the member for
its own, with the two of them in it (`Mesh.reform`); the member only lets it in at its door (`Mesh.befriend`).
"""

import numpy as np

from shoal.cluster.links.frames import CHUNK, Payload, pack
from shoal.cluster.links.gathering import chunks
from shoal.cluster.links.messages import Chunk
from shoal.cluster.links.refused import Refused
from shoal.cluster.links.task import Send, Task, View

CHANNEL = 4094
"""Its own. All items of a loan are one task there: a chunk's phase is the number of its item."""


class Lending(Task):
    """Item `number` of the loan to `taker`."""

    kind = "loan"
    alike = False
    channel = CHANNEL

    def __init__(self, item: int, data: bytes, taker: int) -> None:
        super().__init__(len(data))
        self.item, self.data, self.taker = item, data, taker

    def begin(self, view: View, send: Send) -> None:
        raw = np.frombuffer(self.data, np.uint8)
        for index in range(chunks(len(raw))):
            send(self.taker, self.item, index, pack(raw[index * CHUNK : (index + 1) * CHUNK], "uint8"))
        self.data = b""
        self.done.set()

    def arrived(self, sender: int, chunk: Chunk, payload: Payload) -> None:
        raise Refused(f"worker {sender} sends a loan to the one that gives it")

    def missing(self) -> list[int]:
        return []


class Borrowing(Task):
    """`items` of `lender` that are whole; one of more than `limit` bytes is refused before memory is taken."""

    kind = "loan"
    alike = False
    channel = CHANNEL

    def __init__(self, lender: int, limit: int) -> None:
        super().__init__(0)
        self.lender, self.limit = lender, limit
        self.items: list[bytearray] = []
        self.taken = 0
        """Bytes that have come."""
        self._data = bytearray()
        self._next = 0

    def begin(self, view: View, send: Send) -> None:
        pass

    def arrived(self, sender: int, chunk: Chunk, payload: Payload) -> None:
        here, start = (len(self.items), self._next), chunk.index * CHUNK
        fits = chunk.total <= self.limit and payload.size == min(CHUNK, chunk.total - start)
        if sender != self.lender or (chunk.phase, chunk.index) != here or not fits:
            raise Refused(
                f"worker {sender} sends piece {chunk.index} of item {chunk.phase} of {chunk.total} bytes; worker "
                f"{self.lender} may send piece {here[1]} of item {here[0]}, of up to {self.limit}"
            )
        if not start:
            self._data = bytearray(chunk.total)
        self._data[start : start + payload.size] = payload.frame.buffer
        self.taken += payload.size
        self._next += 1
        if self._next == chunks(chunk.total):
            self.items.append(self._data)
            self._next = 0

    def missing(self) -> list[int]:
        return [self.lender]
