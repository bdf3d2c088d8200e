"""Reliable delivery on one link: numbered chunks, acknowledgements and retransmission.

Window and deadlines follow from estimates of round trip and rate, measured on the link's own traffic.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from shoal.transport.messages import CHUNK, ChunkHeader, FramePayload, MessageChunk

C = TypeVar("C", ChunkHeader, MessageChunk)
"""One link carries the chunks of collectives, another beside it those of messages."""

MEMORY = 10.0
"""The shortest round trip is forgotten after this many seconds to twice as many, because routes change."""
LONGEST_ROUND_TRIP = 10.0
"""Longest round trip believed: a peer's answers make it, and a long one would excuse its silence."""
# Weight of a new rate in the moving mean: after four acknowledgements a third of the old one is left.
GAIN = 0.25
ENOUGH = 128 << 10
"""Bytes that must be acknowledged together to measure a rate."""
SLOWEST = 12_500.0
"""Bytes a second assumed of an unmeasured link: 100 kbit/s, so that no deadline is too short."""
# Bytes: four chunks, so that an acknowledgement is always on its way; a guess for an unmeasured link; a bound on
# memory.
SMALLEST_WINDOW, FIRST_WINDOW, LARGEST_WINDOW = 256 << 10, 4 << 20, 64 << 20
PRODUCTS = 4.0
"""Bandwidth-delay products under way: enough for the rate to grow, few enough that stale data does not block the
link."""
AHEAD = 0.5
"""Seconds of traffic under way in any case: on busy processors an acknowledgement takes longer than the link does."""
AHEAD_NEAR = 0.1
"""The least of the same for traffic that others may overtake: an urgent chunk waits behind no more than this."""
GROW, SHRINK = 2.0, 0.98
"""The factor on `ahead` when the link ran empty between two acknowledgements, and when it did not."""


@dataclass
class LinkEstimate:
    """Round trip and rate of one link, as measured by the sender's clock alone."""

    rtt: float | None = None
    """Seconds; None before the first acknowledgement."""
    rate: float | None = None
    """Acknowledged bytes a second; None before enough were."""
    ahead: float = AHEAD_NEAR
    """Seconds of traffic that may be under way if other chunks may overtake it."""
    most: float = float("inf")
    """Limit of this worker's sending, in bytes a second."""
    _least: list[float] = field(default_factory=lambda: [float("inf"), float("inf")])
    _turned: float = 0.0

    def round_trip(self, seconds: float, now: float) -> None:
        if now - self._turned > MEMORY:
            self._turned = now
            # Two windows of MEMORY seconds: the minimum never starts from nothing when one ends.
            self._least = [self._least[1], float("inf")]
        self._least[1] = min(self._least[1], min(max(seconds, 1e-6), LONGEST_ROUND_TRIP))
        # The shortest, because every other one contains time in queues, which a larger window would only lengthen.
        self.rtt = min(self._least)

    def delivered(self, size: int, seconds: float) -> None:
        """Note that `size` bytes were acknowledged within `seconds`."""
        if size < ENOUGH or seconds <= 0:
            return
        # Acknowledgements may come bundled and show more than the limit allows to leave.
        sample = min(size / seconds, self.most)
        self.rate = sample if self.rate is None else self.rate + GAIN * (sample - self.rate)

    @property
    def window(self) -> int:
        """Return how many bytes may be under way."""
        return self._window(AHEAD)

    @property
    def near(self) -> int:
        """Return how many bytes may be under way that other chunks may overtake."""
        return self._window(self.ahead)

    def drained(self, left: int) -> None:
        """Adapt `ahead` to an acknowledgement that left `left` bytes under way: few mean that the link ran empty."""
        change = GROW if left < self.near / 4 else SHRINK
        self.ahead = min(max(self.ahead * change, AHEAD_NEAR), AHEAD)

    def _window(self, ahead: float) -> int:
        if self.rate is None or self.rtt is None:
            return FIRST_WINDOW
        wanted = self.rate * max(PRODUCTS * self.rtt, ahead)
        return int(min(max(wanted, SMALLEST_WINDOW), LARGEST_WINDOW))

    def allowance(self, size: int, setup: float) -> float:
        """Return the seconds `size` bytes may take: setup + 4 round trips + 4 times the time by the measured rate."""
        return setup + 4 * (self.rtt or 0.0) + 4 * size / (self.rate or min(SLOWEST, self.most))


ACK_CHUNKS = 4
"""Chunks that are acknowledged without waiting for a chunk to do it. Fewer never fill a window, so nobody waits for
this word but who closes; every one of its own wakes two processes."""
HEAD = 128
"""Approximate bytes of a chunk beside its payload."""
PATIENCE = 1.0
"""Least seconds without an acknowledgement before the sender sends again."""
LONGEST_PATIENCE = 30.0
FIRST_REPEAT = 0.05
"""Seconds between the first two retransmissions that a peer asks for; doubled every time."""


@dataclass
class ChunkInFlight(Generic[C]):
    """A chunk that was sent and is not acknowledged yet."""

    chunk: C
    payload: FramePayload
    sent: float
    delivered: int
    """Bytes acknowledged on the link when it was sent; the difference at its own acknowledgement gives the rate."""


@dataclass
class OutgoingLink(Generic[C]):
    """The sending end of a link."""

    estimate: LinkEstimate = field(default_factory=LinkEstimate)
    waiting: list[tuple[int, int, C, FramePayload]] = field(default_factory=list)
    """A heap of urgency, and of a number that keeps the order of equally urgent chunks."""
    queued: int = 0
    in_flight: deque[ChunkInFlight[C]] = field(default_factory=deque)
    next_seq: int = 0
    arrived: int = 0
    """All chunks before this number have arrived."""
    under_way: int = 0
    """Bytes sent and not acknowledged."""
    delivered: int = 0
    progressed: float = 0.0
    patience: float = PATIENCE
    repeated: float = 0.0
    """When everything was last sent again because the peer asked for it."""
    repeat_pause: float = 0.0

    def queue(self, chunk: C, payload: FramePayload, urgency: int = 0) -> None:
        """Queue a chunk; lower urgency leaves first."""
        heapq.heappush(self.waiting, (urgency, self.queued, chunk, payload))
        self.queued += 1

    def next(self, now: float) -> ChunkInFlight[C] | None:
        """Number and return the next chunk to send; None if the window is full or nothing waits."""
        if not self.waiting or (self.in_flight and self.under_way + CHUNK > self._room):
            return None
        _, _, chunk, payload = heapq.heappop(self.waiting)
        return self.launch(msgspec.structs.replace(chunk, seq=self.next_seq), payload, now)

    def launch(self, chunk: C, payload: FramePayload, now: float) -> ChunkInFlight[C]:
        """Count a chunk, which has the next number, as sent."""
        self.next_seq += 1
        if not self.in_flight:
            self.progressed = now
        in_flight = ChunkInFlight(chunk, payload, now, self.delivered)
        self.in_flight.append(in_flight)
        self.under_way += payload.size + HEAD
        return in_flight

    @property
    def _room(self) -> int:
        """Return how many bytes may be under way together with the next chunk."""
        return self.estimate.window if self.waiting[0][0] <= 0 else self.estimate.near

    def acknowledged(self, expected: int, now: float) -> None:
        """Note that every chunk before `expected` has arrived."""
        # A peer may not acknowledge what was never sent.
        self.arrived = max(self.arrived, min(expected, self.next_seq))
        last = None
        while self.in_flight and self.in_flight[0].chunk.seq < expected:
            last = self.in_flight.popleft()
            self.under_way -= last.payload.size + HEAD
            self.delivered += last.payload.size + HEAD
        if last is not None:
            self.progressed, self.patience, self.repeat_pause = now, PATIENCE, 0.0
            self.estimate.delivered(self.delivered - last.delivered, now - last.sent)
            # Only a link that had more to send says anything about the window.
            if self.waiting:
                self.estimate.drained(self.under_way)

    def overdue(self, now: float) -> bool:
        """Return whether to send the first chunk again, ever more rarely, so that its acknowledgement tells the
        rest."""
        if not self.in_flight or now - self.progressed < self.estimate.allowance(self.under_way, self.patience):
            return False
        self.progressed = now
        self.patience = min(2 * self.patience, LONGEST_PATIENCE)
        return True

    def may_repeat(self, now: float) -> bool:
        """Return whether to send everything again because the peer asks: ever more rarely while nothing arrives.

        Without this limit a peer could make this worker send a whole window for every short request.
        """
        if now - self.repeated < self.repeat_pause:
            return False
        self.repeated, self.repeat_pause = now, min(max(2 * self.repeat_pause, FIRST_REPEAT), LONGEST_PATIENCE)
        return True

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.in_flight

    def reset(self) -> None:
        """Start a new generation; chunks of the old one are dropped by every receiver."""
        self.waiting.clear()
        self.in_flight.clear()
        self.next_seq = self.arrived = self.under_way = 0
        self.patience, self.repeat_pause = PATIENCE, 0.0


@dataclass
class IncomingLink:
    """The receiving end of a link."""

    expected: int = 0
    unacknowledged: int = 0
    """Chunks taken since the last acknowledgement."""
    since: float = 0.0
    """When the first of them came."""
    stamp: int = 0
    stamped: float = 0.0
    asked: float = 0.0
    """When the peer was last asked to send again."""

    def take(self, chunk: ChunkHeader | MessageChunk, now: float) -> bool:
        """Take the next chunk; return False for any other, which is a duplicate or follows a gap."""
        if chunk.seq != self.expected:
            return False
        self.expected += 1
        self.stamp, self.stamped = chunk.stamp, now
        if not self.unacknowledged:
            self.since = now
        self.unacknowledged += 1
        return True

    def reset(self) -> None:
        self.expected = self.unacknowledged = 0
        self.asked = 0.0
