"""The protocol of datagrams: what leaves next and when, and what of that which comes is believed.

    datagram = slot of the sender | number | sealed ( block | values )

Blocks go round: each cycle sends the blocks that this worker has changed to all others, one after the other, as fast
as the rate allows, again and again until the round ends. Nothing is acknowledged and nothing sent a second time; a
later cycle carries newer values of the same block. No clock and no socket: the caller passes the time and the bytes.

What is refused, and counted: a sender that is no member, a size that its block does not have, a seal that does not fit,
numbers that are not finite. What is late, and counted: a block that is not newer than the one that is known, so also
every datagram that somebody sends again.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from shoal.sync.datagrams.differences import BLOCK, DifferenceBlocks, Values
from shoal.transport.datagram_seal import TAG_BYTES, DatagramSeal, InvalidDatagramError
from shoal.transport.rate_limit import RateLimit

HEAD = struct.Struct("<HQ")
_BLOCK = struct.Struct("<I")
DATAGRAM_BYTES = HEAD.size + _BLOCK.size + 4 * BLOCK + TAG_BYTES
FRAMING = 28
"""Bytes of the IP and UDP headers, which count in the rate."""
# they travel as unsigned 64 bits and are kept as signed ones
MOST_NUMBERS = 1 << 62
IDLE = 0.01
"""Seconds until the next look, if this worker has changed nothing yet."""


@dataclass
class DatagramCounts:
    """Of all rounds so far, on one worker."""

    sent: int = 0
    sent_bytes: int = 0
    unsent: int = 0
    """That the system did not take, as if they were lost."""
    received: int = 0
    lost: int = 0
    """Of others: later ones have come, and of the same block at the best a newer one."""
    late: int = 0
    """That a newer one of their block has overtaken, or that came twice."""
    refused: int = 0


@dataclass
class DatagramPeer:
    """Another member in one round."""

    slot: int
    seal: DatagramSeal
    sent: int = 0
    highest: int = -1
    """The largest number that has come."""


class BestEffortExchange:
    """The datagrams of one worker in one round. One thread calls it; any may call `forget`."""

    def __init__(
        self,
        slot: int,
        peers: Mapping[str, DatagramPeer],
        blocks: DifferenceBlocks,
        rate: RateLimit,
        counts: DatagramCounts,
    ) -> None:
        self.slot, self.peers, self.blocks, self.rate, self.counts = slot, peers, blocks, rate, counts
        self._by_slot = {peer.slot: member for member, peer in peers.items()}
        self._cycle: Iterator[tuple[int, str]] = iter(())
        self._idle = False
        self._lost: set[str] = set()

    def wait(self, now: float) -> float:
        """Return the seconds until the next datagram may leave."""
        return IDLE if self._idle else self.rate.wait(now)

    def next_datagram(self, now: float) -> tuple[str, bytes] | None:
        """Return the next one and who gets it; None if the rate allows none yet, or nothing has changed."""
        if self.rate.wait(now) > 0:
            return None
        block, member = self._next_place()
        if member not in self.peers or member in self._lost:
            return None
        body = _BLOCK.pack(block) + self.blocks.own(block)
        peer = self.peers[member]
        data = HEAD.pack(self.slot, peer.sent) + peer.seal.close(peer.sent, body)
        peer.sent += 1
        self.rate.spent(len(data) + FRAMING, now)
        self.counts.sent += 1
        self.counts.sent_bytes += len(data) + FRAMING
        return member, data

    def _next_place(self) -> tuple[int, str]:
        found = next(self._cycle, None)
        if found is None:
            self._cycle = self._make_cycle()
            found = next(self._cycle, None)
        self._idle = found is None
        # "" is no member, so nothing leaves
        return found or (0, "")

    def _make_cycle(self) -> Iterator[tuple[int, str]]:
        members = [member for member in self.peers if member not in self._lost]
        return ((int(block), member) for block in self.blocks.changed() for member in members)

    def forget(self, member: str) -> None:
        """A member is lost: send nothing more to it. What it has told stays until the round ends."""
        self._lost.add(member)

    def receive(self, data: bytes) -> None:
        """Take in a datagram from anybody."""
        try:
            member, number, block, values = self._read(data)
        except InvalidDatagramError:
            self.counts.refused += 1
            return
        if not self.blocks.hear(member, number, block, values):
            self.counts.late += 1
            return
        self.counts.received += 1
        peer = self.peers[member]
        if number > peer.highest:
            self.counts.lost += number - peer.highest - 1
            peer.highest = number
        else:
            self.counts.lost -= 1  # only overtaken by one of another block

    def _read(self, data: bytes) -> tuple[str, int, int, Values]:
        if len(data) != DATAGRAM_BYTES:
            raise InvalidDatagramError(f"a datagram of {len(data)} bytes; all have {DATAGRAM_BYTES}")
        slot, number = HEAD.unpack_from(data)
        member = self._by_slot.get(slot)
        if member is None:
            raise InvalidDatagramError(f"a datagram of worker {slot}, which is no member")
        body = self.peers[member].seal.open(number, data[HEAD.size :])
        (block,) = _BLOCK.unpack_from(body)
        values = np.frombuffer(body, np.float32, BLOCK, _BLOCK.size)
        if number > MOST_NUMBERS or block >= self.blocks.blocks or not np.isfinite(values).all():
            raise InvalidDatagramError(f"datagram {number} of {member}, block {block}: none, or not finite")
        return member, number, block, values
