"""How workers are asked to stop: ever more urgently, until none is left."""

import contextlib
import os
import signal
from collections.abc import Sequence

from shoal.cluster.launch.blame import Worker
from shoal.core.clock import Deadline

REQUESTS = ((0.0, signal.SIGINT), (1.5, signal.SIGTERM), (3.0, signal.SIGKILL))
"""By which signal, and after how many seconds: the first lets the script and its record end well."""


class Requests:
    """Of one run; nothing is asked before `begin`."""

    def __init__(self) -> None:
        self._due: list[tuple[Deadline, signal.Signals]] | None = None

    @property
    def begun(self) -> bool:
        return self._due is not None

    def begin(self, grace: float = 0.0) -> None:
        """From now on, or from `grace` seconds on."""
        if self._due is None:
            self._due = [(Deadline.after(grace + seconds), number) for seconds, number in REQUESTS]

    def press(self, workers: Sequence[Worker]) -> None:
        """Send whatever request is due to whoever lives."""
        while self._due and self._due[0][0].expired:
            _, number = self._due.pop(0)
            for worker in workers:
                if worker.status is None:
                    _ask(worker, number)


def _ask(worker: Worker, number: signal.Signals) -> None:
    if number != signal.SIGINT:
        signal_group(worker.pid, number)
    elif not worker.report:  # to the script alone: its loader processes would each print a traceback
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, number)


def signal_group(pid: int, number: signal.Signals) -> None:
    """To a worker and all its children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
