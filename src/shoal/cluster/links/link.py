"""One direction of a link: numbered chunks, acknowledged, sent again when a connection broke.

ZeroMQ connects again by itself, but what was under way is lost. So the sender keeps every chunk until it is
acknowledged, and the receiver takes chunks in order only:

    sender    4 5 6 7 ──✂   (connected again)  ──> 4 5 6 7
    receiver  ack 4                                 5 is next: takes 5 6 7, drops 4, which it had

A chunk gets its number when it leaves, so that an urgent one may overtake those that wait. What is not urgent
keeps less under way: what is in the sockets' buffers cannot be overtaken any more.

Go-back-N, because a break is rare and costs one window. No sockets and no clock in here: a loop hands both in.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field

import msgspec

from shoal.cluster.links.estimate import Estimate
from shoal.cluster.links.frames import CHUNK, Payload
from shoal.cluster.links.messages import Chunk

HEAD = 128
"""Bytes a chunk costs beside its payload, roughly."""
PATIENCE = 1.0
"""Seconds without any acknowledgement after which the sender asks, at the least."""
LONGEST_PATIENCE = 30.0
FIRST_REPEAT = 0.05
"""Seconds between the first two times that everything leaves again on a peer's word; then twice as many."""


@dataclass
class Flying:
    """A chunk that was sent and is not acknowledged yet."""

    chunk: Chunk
    payload: Payload
    sent: float
    delivered: int
    """Bytes of the link that were acknowledged when it left: what is more by its own ack, took that long."""


@dataclass
class Outgoing:
    """What leaves for one peer."""

    estimate: Estimate = field(default_factory=Estimate)
    waiting: list[tuple[int, int, Chunk, Payload]] = field(default_factory=list)
    """A heap: urgency, and a number that keeps the order of those equally urgent."""
    queued: int = 0
    flying: deque[Flying] = field(default_factory=deque)
    next_seq: int = 0
    arrived: int = 0
    """Chunks before this number have arrived."""
    under_way: int = 0
    """Bytes sent and not acknowledged."""
    delivered: int = 0
    progressed: float = 0.0
    patience: float = PATIENCE
    repeated: float = 0.0
    """When everything under way left again because the peer asked for it."""
    repeat_pause: float = 0.0

    def queue(self, chunk: Chunk, payload: Payload, urgency: int = 0) -> None:
        """Let it leave when its turn comes."""
        heapq.heappush(self.waiting, (urgency, self.queued, chunk, payload))
        self.queued += 1

    def next(self, now: float) -> Flying | None:
        """The next chunk that may leave."""
        if not self.waiting or (self.flying and self.under_way + CHUNK > self._room):
            return None
        _, _, chunk, payload = heapq.heappop(self.waiting)
        chunk = msgspec.structs.replace(chunk, seq=self.next_seq)
        self.next_seq += 1
        if not self.flying:
            self.progressed = now
        flying = Flying(chunk, payload, now, self.delivered)
        self.flying.append(flying)
        self.under_way += payload.size + HEAD
        return flying

    @property
    def _room(self) -> int:
        """Bytes that may be under way with the chunk whose turn it is."""
        return self.estimate.window if self.waiting[0][0] <= 0 else self.estimate.near

    def acknowledged(self, expected: int, now: float) -> None:
        """Everything before `expected` has arrived."""
        self.arrived = max(self.arrived, min(expected, self.next_seq))
        last = None
        while self.flying and self.flying[0].chunk.seq < expected:
            last = self.flying.popleft()
            self.under_way -= last.payload.size + HEAD
            self.delivered += last.payload.size + HEAD
        if last is not None:
            self.progressed, self.patience, self.repeat_pause = now, PATIENCE, 0.0
            self.estimate.delivered(self.delivered - last.delivered, now - last.sent)
            if self.waiting:
                self.estimate.drained(self.under_way)

    def overdue(self, now: float) -> bool:
        """Whether it is time to ask what became of the first chunk; asks ever more rarely."""
        if not self.flying or now - self.progressed < self.estimate.allowance(self.under_way, self.patience):
            return False
        self.progressed = now
        self.patience = min(2 * self.patience, LONGEST_PATIENCE)
        return True

    def may_repeat(self, now: float) -> bool:
        """Whether to send all again that is under way: ever more rarely as long as nothing arrives.

        A short word of a peer makes this worker send a whole window.
        """
        if now - self.repeated < self.repeat_pause:
            return False
        self.repeated, self.repeat_pause = now, min(max(2 * self.repeat_pause, FIRST_REPEAT), LONGEST_PATIENCE)
        return True

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.flying

    def reset(self) -> None:
        """A new epoch: what is left of the old one concerns nobody."""
        self.waiting.clear()
        self.flying.clear()
        self.next_seq = self.arrived = self.under_way = 0
        self.patience, self.repeat_pause = PATIENCE, 0.0


@dataclass
class Incoming:
    """What comes from one peer."""

    expected: int = 0
    unsaid: int = 0
    """Chunks taken since the last Ack."""
    since: float = 0.0
    """When the first of them came."""
    stamp: int = 0
    stamped: float = 0.0
    asked: float = 0.0
    """When it was last asked to send again."""

    def take(self, chunk: Chunk, now: float) -> bool:
        """Whether this is the next chunk; anything else is a duplicate, or follows a gap."""
        if chunk.seq != self.expected:
            return False
        self.expected += 1
        self.stamp, self.stamped = chunk.stamp, now
        if not self.unsaid:
            self.since = now
        self.unsaid += 1
        return True

    def reset(self) -> None:
        self.expected = self.unsaid = 0
        self.asked = 0.0
