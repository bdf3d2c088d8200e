"""One launcher at a time has a run: two that write the same record and checkpoints would destroy both.

The kernel releases the lock when its holders die, however they die, so no stale lock is left to clean up.
"""

import fcntl
import os
import time
from pathlib import Path

from shoal.core.clock import Deadline
from shoal.core.errors import UsageError

PATIENCE = 10.0
"""Seconds to wait for processes of a killed run to be gone."""

# Never closed: the lock lives as long as the descriptor, which forked workers inherit.
_held: dict[Path, int] = {}


def hold(directory: Path, run: str, seconds: float = PATIENCE) -> None:
    """Make this process, and the workers it forks, the only ones of the run in `directory` until they end."""
    if directory in _held:
        return
    file = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    deadline = Deadline.after(seconds)
    while True:
        try:
            # Polled: a blocking flock has no deadline.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if deadline.expired:
                os.close(file)
                raise UsageError(f"run {run!r} is still running; stop it first, or wait for its end") from None
            time.sleep(0.05)
        else:
            _held[directory] = file
            return
