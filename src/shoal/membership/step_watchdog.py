"""How the agent observes the training loop: the step it is in, what it does, how long its steps take."""

import threading
import time
from collections import deque
from collections.abc import Callable
from statistics import median

from shoal.hosts.status_board import StatusBoard, WorkerState

LOOKS = 31
"""Differences of which the median is taken."""

Look = Callable[[], tuple[int, str]]
"""Step and what is being done, as the training loop wrote it last; called from the agent's thread."""


def from_board(board: StatusBoard, rank: int) -> Look:
    """Look at a worker's row of the board."""

    def look() -> tuple[int, str]:
        row = board.read(rank)
        return int(row["step"]), WorkerState(int(row["state"])).name

    return look


class ThreadIdleTime:
    """How long a thread has not run. A thread that polls or wakes up now and then runs; one in a deadlock does not.

    Made in the thread that is watched, asked in another.
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
        """0 while nothing is known."""
        if self._last is None or step < self._last[1]:
            self._last = (now, step)
        elif step > self._last[1]:
            moment, before = self._last
            if self._begun:
                self._seconds.append((now - moment) / (step - before))
            self._last, self._begun = (now, step), True
        return median(self._seconds) if self._seconds else 0.0
