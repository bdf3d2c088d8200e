"""Reliable delivery on one link: numbered chunks, acknowledgements, retransmission, and the estimates of round trip and
rate from which window and deadlines follow.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from shoal.transport.messages import CHUNK, ChunkHeader, FramePayload, MessageChunk

C = TypeVar("C", ChunkHeader, MessageChunk)
"""A link numbers the chunks of collectives; another one, beside it, those of messages."""

MEMORY = 10.0
"""Seconds after which an old round trip is forgotten, or twice that."""
LONGEST_ROUND_TRIP = 10.0
"""Seconds that are believed: a peer's words make one, and a long one would forgive its silence."""
GAIN = 0.25
ENOUGH = 128 << 10
"""Bytes between two acknowledgements that tell a rate."""
SLOWEST = 12_500.0
"""Bytes a second of a link that has not been measured: 100 kbit/s, so that no deadline is too short."""
SMALLEST_WINDOW, FIRST_WINDOW, LARGEST_WINDOW = 256 << 10, 4 << 20, 64 << 20
PRODUCTS = 4.0
"""Bandwidth-delay products under way: enough to let the rate grow, not so many that what is stale blocks the link."""
AHEAD = 0.5
"""Seconds of traffic under way in any case: where processors are busy, an acknowledgement takes longer than a link."""
AHEAD_NEAR = 0.1
"""The same at the least for what others may overtake, so that an urgent chunk does not wait longer for it."""
GROW, SHRINK = 2.0, 0.98
"""By what it changes where a link stands still meanwhile, and where it does not."""


@dataclass
class LinkEstimate:
    """Of one link."""

    rtt: float | None = None
    """Seconds; None before anything came back."""
    rate: float | None = None
    """Bytes a second of what was acknowledged; None before enough was."""
    ahead: float = AHEAD_NEAR
    """Seconds of traffic under way of what others may overtake."""
    most: float = float("inf")
    """Limit of this worker's sending, in bytes a second."""
    _least: list[float] = field(default_factory=lambda: [float("inf"), float("inf")])
    _turned: float = 0.0

    def round_trip(self, seconds: float, now: float) -> None:
        if now - self._turned > MEMORY:
            self._turned = now
            self._least = [self._least[1], float("inf")]
        self._least[1] = min(self._least[1], min(max(seconds, 1e-6), LONGEST_ROUND_TRIP))
        self.rtt = min(self._least)

    def delivered(self, size: int, seconds: float) -> None:
        """`size` bytes were acknowledged within `seconds`."""
        if size < ENOUGH or seconds <= 0:
            return
        sample = min(size / seconds, self.most)
        self.rate = sample if self.rate is None else self.rate + GAIN * (sample - self.rate)

    @property
    def window(self) -> int:
        """Bytes that may be under way."""
        return self._window(AHEAD)

    @property
    def near(self) -> int:
        """Bytes that may be under way of what others may overtake."""
        return self._window(self.ahead)

    def drained(self, left: int) -> None:
        """An acknowledgement came, more waits, and only `left` bytes were under way: if few, the link stood still."""
        change = GROW if left < self.near / 4 else SHRINK
        self.ahead = min(max(self.ahead * change, AHEAD_NEAR), AHEAD)

    def _window(self, ahead: float) -> int:
        if self.rate is None or self.rtt is None:
            return FIRST_WINDOW
        wanted = self.rate * max(PRODUCTS * self.rtt, ahead)
        return int(min(max(wanted, SMALLEST_WINDOW), LARGEST_WINDOW))

    def allowance(self, size: int, setup: float) -> float:
        """Seconds that `size` bytes may take: setup + 4 round trips + 4 times what the rate says."""
        return setup + 4 * (self.rtt or 0.0) + 4 * size / (self.rate or min(SLOWEST, self.most))


HEAD = 128
"""Bytes a chunk costs beside its payload, roughly."""
PATIENCE = 1.0
"""Seconds without any acknowledgement after which the sender asks, at the least."""
LONGEST_PATIENCE = 30.0
FIRST_REPEAT = 0.05
"""Seconds between the first two times that everything leaves again on a peer's word; then twice as many."""


@dataclass
class ChunkInFlight(Generic[C]):
    """A chunk that was sent and is not acknowledged yet."""

    chunk: C
    payload: FramePayload
    sent: float
    delivered: int
    """Bytes of the link that were acknowledged when it left: what is more by its own ack, took that long."""


@dataclass
class OutgoingLink(Generic[C]):
    """What leaves for one peer."""

    estimate: LinkEstimate = field(default_factory=LinkEstimate)
    waiting: list[tuple[int, int, C, FramePayload]] = field(default_factory=list)
    """A heap: urgency, and a number that keeps the order of those equally urgent."""
    queued: int = 0
    flying: deque[ChunkInFlight[C]] = field(default_factory=deque)
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

    def queue(self, chunk: C, payload: FramePayload, urgency: int = 0) -> None:
        """Let it leave when its turn comes."""
        heapq.heappush(self.waiting, (urgency, self.queued, chunk, payload))
        self.queued += 1

    def next(self, now: float) -> ChunkInFlight[C] | None:
        """The next chunk that may leave."""
        if not self.waiting or (self.flying and self.under_way + CHUNK > self._room):
            return None
        _, _, chunk, payload = heapq.heappop(self.waiting)
        chunk = msgspec.structs.replace(chunk, seq=self.next_seq)
        self.next_seq += 1
        if not self.flying:
            self.progressed = now
        flying = ChunkInFlight(chunk, payload, now, self.delivered)
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
        """A new generation: what is left of the old one concerns nobody."""
        self.waiting.clear()
        self.flying.clear()
        self.next_seq = self.arrived = self.under_way = 0
        self.patience, self.repeat_pause = PATIENCE, 0.0


@dataclass
class IncomingLink:
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

    def take(self, chunk: ChunkHeader | MessageChunk, now: float) -> bool:
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
