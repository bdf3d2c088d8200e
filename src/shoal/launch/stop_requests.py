"""Asking workers to stop, ever more urgently, until none is left."""

import contextlib
import os
import signal
from collections.abc import Sequence

from shoal.core.clock import Deadline
from shoal.core.signals import held_back
from shoal.launch.failures import WorkerProcess

REQUESTS = ((0.0, signal.SIGINT), (1.5, signal.SIGTERM), (3.0, signal.SIGKILL))
"""By which signal, and after how many seconds: the first lets the script and its record end well."""


class StopRequests:
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

    def press(self, workers: Sequence[WorkerProcess]) -> None:
        """Send the request that is due to all living workers."""
        while self._due and self._due[0][0].expired:
            _, number = self._due.pop(0)
            for worker in workers:
                if worker.status is None:
                    _ask(worker, number)


def _ask(worker: WorkerProcess, number: signal.Signals) -> None:
    if number != signal.SIGINT:
        signal_group(worker, number)
    elif not worker.report:  # to the script alone: its loader processes would each print a traceback
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, number)


def signal_group(worker: WorkerProcess, number: signal.Signals) -> None:
    """Send a signal to a worker and all its children; to nobody if the worker was reaped."""
    if worker.status is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, number)


def reap(worker: WorkerProcess, wait: bool = False) -> bool:
    """Collect the exit status of a worker that has ended, after killing the rest of its group; whether it did so."""
    if worker.status is not None:
        return False
    # WNOWAIT: until its group is killed, the process stays a zombie, and its number nobody else's
    options = os.WEXITED | os.WNOWAIT | (0 if wait else os.WNOHANG)
    if os.waitid(os.P_PID, worker.pid, options) is None:
        return False
    with held_back():  # an interrupt between the wait and the note of it would leave a number that is no longer ours
        signal_group(worker, signal.SIGKILL)
        worker.status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
    return True
