"""What a link is like, learned from its own traffic: round trip, rate, and from them window and deadlines.

Only differences of one's own clock are used. The round trip is the least of the last ten to twenty seconds, for queues
make the others longer; the rate is a running mean of what was acknowledged per second while much was under way
(Cardwell et al., "BBR: congestion-based congestion control", ACM Queue 2016, have both, for the same reason).
"""

from dataclasses import dataclass, field

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
class Estimate:
    """Of one link."""

    rtt: float | None = None
    """Seconds; None before anything came back."""
    rate: float | None = None
    """Bytes a second of what was acknowledged; None before enough was."""
    ahead: float = AHEAD_NEAR
    """Seconds of traffic under way of what others may overtake."""
    most: float = float("inf")
    """Bytes a second that this worker lets itself send at the most."""
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
