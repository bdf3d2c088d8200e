"""Fences that order what one process writes to shared memory before what others may read after it."""

import platform
import threading

# x86 keeps the order of stores and of loads; only a load may overtake an earlier store (`full_fence`).
_IN_ORDER = platform.machine().lower() in {"x86_64", "amd64", "i686", "i386"}
# Taking a lock is an atomic instruction, and the only fence that Python offers.
_lock = threading.Lock()


def fence() -> None:
    """No memory access of this thread crosses this line."""
    if not _IN_ORDER:
        # Accesses may move into a locked section from either side, but never across two of them.
        for _ in range(2):
            with _lock:
                pass


def full_fence() -> None:
    """As `fence`, and what was written before is seen by all before anything is read after: x86 does not promise it."""
    with _lock:
        pass
    fence()  # where one lock is not enough, because accesses may move into it from either side
