"""When to call a silent coordinator anew: not before the last call could have been answered.

A call over a far link takes long: TCP, its greeting and the keys are five round trips, and the first word one more. So
a call has ten round trips, as leases tell them; one that nobody has answered gets twice the time of the one before. No
clock in here: the caller hands it in.
"""

FIRST = 2.0
"""Seconds of a call as long as nothing is known of the link."""
SHORTEST, LONGEST = 1.0, 16.0
ROUND_TRIPS = 10


class Redial:
    """Of one connection that was called at `now`."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._usual = self._patience = FIRST

    def heard(self, now: float) -> None:
        """The coordinator has said something."""
        self._since, self._patience = now, self._usual

    def round_trip(self, seconds: float) -> None:
        """What it has answered took so long."""
        self._usual = self._patience = min(max(SHORTEST, ROUND_TRIPS * seconds), LONGEST)

    def due(self, now: float) -> bool:
        """Whether to call again; then that call has begun."""
        if now - self._since <= self._patience:
            return False
        self._since, self._patience = now, min(2 * self._patience, LONGEST)
        return True
