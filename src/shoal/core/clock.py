"""Time: a deadline that is handed down a chain of waits, always on the monotonic clock."""

import time
from dataclasses import dataclass

# Monotonic, and on Linux the same clock in all processes, so moments may be compared through shared memory.
now = time.perf_counter


def delayed() -> float:
    """Seconds so far in which this thread could have run and had no core; 0 where the system does not tell."""
    try:
        with open("/proc/thread-self/schedstat") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment by which something must have happened; children receive the same object, never a longer one."""

    at: float
    """Moment on the monotonic clock, in seconds."""
    budget: float
    """The seconds granted at first, for error messages."""

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        return cls(now() + seconds, seconds)

    @property
    def left(self) -> float:
        """Seconds that remain, never negative."""
        return max(0.0, self.at - now())

    @property
    def expired(self) -> bool:
        return now() >= self.at
