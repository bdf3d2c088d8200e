"""Who is waited for, in words, while it lasts: `waiting 3.2 s for worker 2 (pid 71), last seen computing in step 418`.

Seen from the launcher: some workers are in an exchange, another is not there yet. That is so in every step for a
moment; it is worth a line when it takes longer than a few seconds and much longer than it ever took in this run.
"""

from collections.abc import Sequence

from shoal.watch.live import WorkerRow

LEAST = 3.0
"""Seconds of waiting that are never worth a line."""
UNUSUAL = 4.0
"""Times the longest wait that ended well."""
WAITING = ("exchanging", "synchronizing")
BUSY = ("loading", "computing", "updating")


class WaitTotals:
    """Of one run; `look` is called several times a second."""

    def __init__(self) -> None:
        self._usual = 0.0
        self._last = 0.0
        self._next = 0.0

    def look(self, rows: Sequence[WorkerRow]) -> str | None:
        """A line, when there is something new to say."""
        waiting = [row for row in rows if row.state in WAITING]
        missing = [row for row in rows if row.state in BUSY]
        # The wait, if there was one, has ended well, and says what is usual in this run.
        if not waiting or not missing:
            self._usual, self._last, self._next = max(self._usual, self._last), 0.0, 0.0
            return None
        # Not longer than those that are missing have been at it: one that has just begun its step is not late.
        lasts = min(max(row.since for row in waiting), min(row.since for row in missing))
        if lasts < self._last:  # another wait than before
            self._usual, self._next = max(self._usual, self._last), 0.0
        self._last = lasts
        if lasts < max(LEAST, UNUSUAL * self._usual, self._next):
            return None
        # Doubled, so that a wait of an hour gives a dozen lines.
        self._next = 2 * lasts
        suspects = "; ".join(f"worker {r.rank} (pid {r.pid}), last seen {r.state} in step {r.step}" for r in missing)
        return f"waiting {lasts:.1f} s for {suspects}"
