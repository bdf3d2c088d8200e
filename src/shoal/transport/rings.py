"""Where the rings and doorbells of a host's workers lie in the memory they share.

    BASE     doorbells, one for each slot │ numbers of the ring of every ordered pair of slots
    + DATA   rings, of every ordered pair: reserved when one of the two first has something to say or to hear

The arena is a sparse file, so unused places cost nothing, and a worker that comes later finds the same ones.
"""

from shoal.hosts.arena import SharedArena, pages
from shoal.hosts.doorbell import ProcessDoorbell
from shoal.transport.message_ring import COUNTERS, MessageRing

# Offsets in the run's arena, far above what engines and the board reserve in the same sparse file.
BASE, DATA = 1 << 61, 1 << 40
# Eight pieces of 512 KiB, twice the window: what is short always finds room beside it.
RING = 4 << 20
LINE = 64


class HostRings:
    """Of `slots` workers."""

    def __init__(self, arena: SharedArena, slots: int) -> None:
        self._arena, self._slots = arena, slots
        size = pages(slots * LINE + slots * slots * COUNTERS)
        self._control = memoryview(arena.map(BASE, size))

    def bell(self, slot: int) -> ProcessDoorbell:
        return ProcessDoorbell(self._control[slot * LINE :][:LINE])

    def ring(self, sender: int, receiver: int) -> MessageRing:
        pair = sender * self._slots + receiver
        counters = self._control[self._slots * LINE + pair * COUNTERS :][:COUNTERS]
        return MessageRing(counters, lambda: memoryview(self._arena.map(BASE + DATA + pair * RING, RING)), RING)
