"""Limits how many bytes a worker sends per second, for machines that share their line."""

import os

from shoal.core.errors import UsageError
from shoal.core.units import BitRate

BANDWIDTH_VARIABLE = "SHOAL_BANDWIDTH"
AT_ONCE = 0.01
"""Seconds of traffic that may leave in one burst after a pause."""
LEAST_AT_ONCE = 128 << 10
SHORTEST = 0.001
"""Shortest wait in seconds, so that the loop does not wake for every few bytes."""


class RateLimit:
    """A token bucket of `rate` bytes a second, without a clock of its own: the caller passes the time."""

    def __init__(self, rate: float, least_at_once: int = LEAST_AT_ONCE) -> None:
        self.rate, self._most = rate, max(least_at_once, rate * AT_ONCE)
        self._left, self._at = self._most, 0.0

    def spent(self, size: int, now: float) -> None:
        """Note that `size` bytes were sent."""
        self._refill(now)
        # May become negative: a chunk that has begun leaves whole, and the next waits for it.
        self._left -= size

    def wait(self, now: float) -> float:
        """Return the seconds until the next chunk may leave; 0 if it may now."""
        self._refill(now)
        return 0.0 if self._left > 0 else max(SHORTEST, -self._left / self.rate)

    def _refill(self, now: float) -> None:
        self._left = min(self._most, self._left + (now - self._at) * self.rate)
        self._at = now


def rate_limit_from_environment() -> RateLimit | None:
    """Return the limit in $SHOAL_BANDWIDTH, which `shoal run --bandwidth` sets; None if there is none."""
    rate = checked(os.environ.get(BANDWIDTH_VARIABLE, "") or "unlimited")
    return RateLimit(rate.bits / 8) if rate.bits else None


def checked(text: str) -> BitRate:
    """Parse a rate; 0 bits mean no limit."""
    try:
        return BitRate.parse(text)
    except UsageError as error:
        raise UsageError(f"--bandwidth (${BANDWIDTH_VARIABLE}): {error}") from None
