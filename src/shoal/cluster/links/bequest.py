"""One worker's bytes for some others, item by item, each of a length that only it knows: a run's state for newcomers.

    member      Giving(state, newcomers)                  done as soon as it is on its way; more items may follow
    newcomer    Taking(member)                            done with the last; items that came stay when a view ends

Everybody else has no part in it. What leaves is copied piece by piece, so the giver may go on at once. For a loan
(`cluster/loans.py`) the newcomer is in no view yet: it takes that of the member for its own, with the two of them in it
(`Mesh.reform`), and the member only lets it in at its door (`Mesh.befriend`).
"""

from collections.abc import Sequence

import numpy as np

from shoal.cluster.links.frames import CHUNK, Payload, pack
from shoal.cluster.links.gathering import chunks
from shoal.cluster.links.messages import Chunk
from shoal.cluster.links.refused import Refused
from shoal.cluster.links.task import Send, Task, View

CHANNEL, LOAN = 4095, 4094
"""Their own, for newcomers in the view and for those that are not. All items are one task: a chunk's phase is the
number of its item."""


class Giving(Task):
    """Item `item` for `takers`."""

    kind = "bequest"
    alike = False

    def __init__(self, data: bytes, takers: Sequence[int], item: int = 0, channel: int = CHANNEL) -> None:
        super().__init__(len(data))
        self.data, self.takers, self.item, self.channel = data, takers, item, channel

    def begin(self, view: View, send: Send) -> None:
        raw = np.frombuffer(self.data, np.uint8)
        for index in range(chunks(len(raw))):
            payload = pack(raw[index * CHUNK : (index + 1) * CHUNK], "uint8")
            for taker in self.takers:
                send(taker, self.item, index, payload)
        self.data = b""
        self.done.set()

    def arrived(self, sender: int, chunk: Chunk, payload: Payload) -> None:
        raise Refused(f"worker {sender} sends a state to the one that gives it")

    def missing(self) -> list[int]:
        return []


class Taking(Task):
    """`items` of `giver` that are whole; one of more than `limit` bytes is refused before memory is taken."""

    kind = "bequest"
    alike = False

    def __init__(self, giver: int, limit: int, wanted: int | None = 1, channel: int = CHANNEL) -> None:
        """`wanted`: so many items; None: as many as come."""
        super().__init__(0)
        self.giver, self.limit, self.wanted, self.channel = giver, limit, wanted, channel
        self.items: list[bytearray] = []
        self.taken = 0
        """Bytes that have come."""
        self._data, self._total = bytearray(), 0
        self._next = 0

    def begin(self, view: View, send: Send) -> None:
        pass

    def arrived(self, sender: int, chunk: Chunk, payload: Payload) -> None:
        here, start = (len(self.items), self._next), chunk.index * CHUNK
        same = not chunk.index or chunk.total == self._total
        fits = same and chunk.total <= self.limit and payload.size == min(CHUNK, chunk.total - start)
        if sender != self.giver or (chunk.phase, chunk.index) != here or not fits:
            raise Refused(
                f"worker {sender} sends piece {chunk.index} of item {chunk.phase} of {chunk.total} bytes; worker "
                f"{self.giver} may send piece {here[1]} of item {here[0]}, of up to {self.limit}"
            )
        if not start:
            self._data, self._total = bytearray(), chunk.total
        self._data += payload.frame.buffer  # grows as bytes arrive, not by what was announced
        self.taken += payload.size
        self._next += 1
        if self._next == chunks(chunk.total):
            self.items.append(self._data)
            self._next = 0
            if len(self.items) == self.wanted:
                self.done.set()

    def missing(self) -> list[int]:
        return [self.giver]
