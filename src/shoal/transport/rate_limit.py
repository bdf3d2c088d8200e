"""Limits how many bytes a worker sends per second, for machines that share their line."""

import os

from shoal.core.errors import UsageError
from shoal.core.units import BitRate

BANDWIDTH_VARIABLE = "SHOAL_BANDWIDTH"
AT_ONCE = 0.01
"""Seconds of traffic that may leave at once after a pause."""
LEAST_AT_ONCE = 128 << 10
SHORTEST = 0.001
"""Seconds a loop waits at the least: what becomes free earlier leaves with the rest."""


class RateLimit:
    """Bytes that may leave, at `rate` bytes a second. No clock in here: a loop hands it in."""

    def __init__(self, rate: float) -> None:
        self.rate, self._most = rate, max(LEAST_AT_ONCE, rate * AT_ONCE)
        self._left, self._at = self._most, 0.0

    def spent(self, size: int, now: float) -> None:
        """`size` bytes have left."""
        self._refill(now)
        self._left -= size

    def wait(self, now: float) -> float:
        """Seconds until the next chunk may leave; 0 if it may now."""
        self._refill(now)
        return 0.0 if self._left > 0 else max(SHORTEST, -self._left / self.rate)

    def _refill(self, now: float) -> None:
        self._left = min(self._most, self._left + (now - self._at) * self.rate)
        self._at = now


def rate_limit_from_environment() -> RateLimit | None:
    """What $SHOAL_BANDWIDTH says, which `shoal run --bandwidth` sets."""
    rate = checked(os.environ.get(BANDWIDTH_VARIABLE, "") or "unlimited")
    return RateLimit(rate.bits / 8) if rate.bits else None


def checked(text: str) -> BitRate:
    """The rate that was written; no bits are no limit."""
    try:
        return BitRate.parse(text)
    except UsageError as error:
        raise UsageError(f"--bandwidth (${BANDWIDTH_VARIABLE}): {error}") from None
