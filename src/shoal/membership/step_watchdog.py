"""How the agent observes the training loop: its step, its state, how long steps take, and whether the thread runs."""

import threading
import time
from collections import deque
from collections.abc import Callable
from statistics import median

from shoal.hosts.status_board import StatusBoard, WorkerState

LOOKS = 31
"""The median is taken over this many steps, so one slow step (a checkpoint, an evaluation) does not raise it."""

Look = Callable[[], tuple[int, str]]
"""Returns the step and state that the training loop wrote last; called in the agent's thread."""


def from_board(board: StatusBoard, rank: int) -> Look:
    """Return a function that reads a worker's row of the status board."""

    def look() -> tuple[int, str]:
        row = board.read(rank)
        return int(row["step"]), WorkerState(int(row["state"])).name

    return look


class ThreadIdleTime:
    """How long a thread has used no CPU time: a thread that polls does use some, one in a deadlock does not.

    Make it in the thread to watch; ask it in another.
    """

    def __init__(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._last = (-1, 0.0)

    def look(self, now: float) -> float:
        used = time.clock_gettime_ns(self._clock)
        if used != self._last[0]:
            self._last = (used, now)
        return now - self._last[1]


class StepPeriod:
    """Median seconds of a step, from looks at the step counter.

    It begins with the first step that ends: before that a script builds its model and reads its data, and a worker
    that is lost soon after would be waited for as long as if its steps took that long.
    """

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=LOOKS)
        self._last: tuple[float, int] | None = None
        self._begun = False

    def look(self, now: float, step: int) -> float:
        """Return the median, or 0 while no step has ended."""
        if self._last is None or step < self._last[1]:
            self._last = (now, step)
        elif step > self._last[1]:
            moment, before = self._last
            if self._begun:
                # Looks may skip steps; each of the skipped ones took the mean.
                self._seconds.append((now - moment) / (step - before))
            self._last, self._begun = (now, step), True
        return median(self._seconds) if self._seconds else 0.0
