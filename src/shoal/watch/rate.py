"""How fast a total grows, over a short window."""

from collections import deque

WINDOW = 2.0
"""Seconds: short enough to follow a change, long enough to be read."""


class RateMeter:
    """Fed with (moment, total); the moments are the caller's, so nothing here reads a clock."""

    def __init__(self, window: float = WINDOW) -> None:
        self.window = window
        self._seen: deque[tuple[float, float]] = deque()

    def add(self, at: float, total: float) -> float:
        """Take the newest total; returns growth per second over the window, 0 until there are two moments.

        A total that has shrunk begins anew: a worker was lost, and the next one in its place counts from zero.
        """
        if self._seen and total < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((at, total))
        # The oldest kept point is the last one that is a whole window old: the rate covers all of it.
        while len(self._seen) > 2 and at - self._seen[1][0] >= self.window:
            self._seen.popleft()
        first_at, first_total = self._seen[0]
        return (total - first_total) / (at - first_at) if at > first_at else 0.0
