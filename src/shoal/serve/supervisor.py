"""The supervisor: worker processes that share one listening socket, replaced when they end, as many as the load needs.

The supervisor binds the port, loads no model and answers no request, so that it has nothing to fail by. Connections
wait in the kernel's queue of the one socket: what a killed worker has not accepted, another one does. With no worker at
all (scale to zero) the supervisor waits for a connection itself and starts one.
"""

import ctypes
import os
import select
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from shoal.core import clock
from shoal.core.errors import UsageError
from shoal.serve.scaling import ScalingGoal, SwayamScaler
from shoal.serve.worker_channel import ReportReader, ReportSender, WorkerReport

PERIOD = 0.1
"""Seconds between two looks at the load."""
SILENCE = 60.0
"""Seconds without a report after which a worker counts as hung and is killed; loading may take longer."""
LOADING = 600.0
GRACE = 15.0
"""Seconds that workers have to finish requests when the server ends."""
MOST_PAUSE = 10.0
"""Seconds between two starts of a worker that ends again at once."""
# From linux/prctl.h; Python has no name for it.
_PR_SET_PDEATHSIG = 1

RunWorker = Callable[[int, ReportSender], None]
"""What a worker does: its slot, and where it reports."""


@dataclass
class ServingProcess:
    """One worker, in the slot of that number."""

    pid: int
    reader: ReportReader
    began: float
    heard: float
    ready: bool = False
    leaving: float | None = None
    """Since when it has been asked to end."""
    error: str = ""
    last: WorkerReport = field(default_factory=lambda: WorkerReport("load"))


class WorkerSupervisor:
    """Runs in one thread, without threads beside it: workers are forked."""

    def __init__(
        self,
        run: RunWorker,
        goal: ScalingGoal,
        listening: socket.socket,
        say: Callable[[str], None],
        ended: Callable[[int], None] = lambda pid: None,
        beside: Callable[[], None] = lambda: None,
    ) -> None:
        """`ended` gets the process id of every worker that is over; `beside` is called several times a second."""
        self._beside = beside
        self._run, self._goal, self._listening, self._say, self._ended = run, goal, listening, say, ended
        self._workers: dict[int, ServingProcess] = {}
        self._scaler = SwayamScaler(goal)
        self._pause = 0.0
        self._next_start = 0.0
        self._served = self._busy = 0.0
        self._was_ready = False
        self.cold_start = 0.0
        """Seconds from the last start of a worker to its being ready."""

    def run(self, greet: Callable[[str], None]) -> None:
        """Until it is interrupted. `greet` gets the first ready worker's words; UsageError if it could not start."""
        try:
            while True:
                self._watch(greet)
        finally:
            self.stop()

    def _watch(self, greet: Callable[[str], None]) -> None:
        now = clock.now()
        self._beside()
        self._adjust(now)
        pipes = [each.reader.pipe for each in self._workers.values()]
        asleep = not self._workers and self._goal.least == 0
        # Not while workers live: they accept, and the supervisor would wake for each of their connections.
        watched = [*pipes, *([self._listening.fileno()] if asleep else [])]
        ready, _, _ = select.select(watched, [], [], PERIOD)
        if self._listening.fileno() in ready:
            self._start(0)
        for slot, worker in list(self._workers.items()):
            for report in worker.reader.read():
                self._take(slot, worker, report, greet)
            self._check(slot, worker, clock.now())

    def _take(self, slot: int, worker: ServingProcess, report: WorkerReport, greet: Callable[[str], None]) -> None:
        worker.heard = clock.now()
        match report.kind:
            case "ready":
                worker.ready, self._pause, self.cold_start = True, 0.0, worker.heard - worker.began
                self._scaler.keep(worker.heard, 1)  # it lingers before anybody asks, too
                if not self._was_ready:
                    self._was_ready = True
                    greet(report.text)
            case "load":
                self._scaler.observe(worker.heard, report.arrived - worker.last.arrived)
                self._served += report.arrived - worker.last.arrived
                self._busy += report.busy - worker.last.busy
                worker.last = report
            case "say" if slot == min(self._workers):  # all of them load what one of them does
                self._say(report.text)
            case "error":
                worker.error = report.text

    def _check(self, slot: int, worker: ServingProcess, now: float) -> None:
        """Bury a worker that has ended; kill one that says nothing."""
        if now - worker.heard > (SILENCE if worker.ready else LOADING):
            self._say(f"worker {slot} (pid {worker.pid}) has said nothing for {now - worker.heard:.0f} s: killed")
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
        if worker.leaving is not None and now - worker.leaving > GRACE:
            os.kill(worker.pid, signal.SIGKILL)  # it is not reaped yet, so that the id is still its own
        pid, status = os.waitpid(worker.pid, os.WNOHANG)
        if not pid:
            return
        # What it said before it ended is still in the pipe.
        for report in worker.reader.read():
            worker.error = report.text if report.kind == "error" else worker.error
        worker.reader.close()
        del self._workers[slot]
        self._ended(pid)
        # Before the first is ready it is the user's mistake; later a worker fails by itself and is replaced.
        if worker.error and not self._was_ready:
            raise UsageError(worker.error)
        if worker.leaving is None:
            self._mourn(slot, worker, status, now)

    def _mourn(self, slot: int, worker: ServingProcess, status: int, now: float) -> None:
        code = os.waitstatus_to_exitcode(status)
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        why = f": {worker.error}" if worker.error else ""
        self._say(f"worker {slot} (pid {worker.pid}) {how}{why}; another one takes its place")
        if now - worker.began < MOST_PAUSE:  # one that ends again and again must not take the machine with it
            self._pause = min(MOST_PAUSE, max(0.1, 2 * self._pause))
        self._next_start = now + self._pause

    def _adjust(self, now: float) -> None:
        # Lets the window move on while no worker reports.
        self._scaler.observe(now, 0)
        waiting = sum(each.last.waiting for each in self._workers.values())
        service = self._busy / self._served if self._served else 0.0
        # Until one is ready nothing is known of the load.
        wanted = self._goal.least if not self._was_ready else self._scaler.wanted(now, service, waiting)
        if not self._was_ready:
            wanted = max(1, wanted)
        # The lowest slots, so that slots above the wanted number are those to end.
        for slot in range(wanted):
            if slot not in self._workers and now >= self._next_start:
                self._start(slot)
        for slot in [each for each in sorted(self._workers) if each >= wanted]:
            self._dismiss(self._workers[slot])

    def _dismiss(self, worker: ServingProcess) -> None:
        if worker.ready and worker.leaving is None:  # one that loads would end without having answered anybody
            worker.leaving = clock.now()
            os.kill(worker.pid, signal.SIGTERM)

    def _start(self, slot: int) -> None:
        reading, writing = os.pipe()
        # Before the fork, so that the child can tell whether its parent has died since.
        supervisor = os.getpid()
        pid = os.fork()
        if pid == 0:
            code = 1
            with suppress(BaseException):
                os.close(reading)
                _live_no_longer_than(supervisor)
                self._run(slot, ReportSender(writing))
                code = 0
            # Not sys.exit: the `finally` blocks of the supervisor's stack are not the child's to run.
            os._exit(code)
        os.close(writing)
        now = clock.now()
        self._workers[slot] = ServingProcess(pid, ReportReader(reading), now, now)

    def stop(self) -> None:
        """End every worker: first asked, then killed."""
        for worker in self._workers.values():
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGTERM)
        until = clock.now() + GRACE
        for worker in self._workers.values():
            while not os.waitpid(worker.pid, os.WNOHANG)[0]:
                if clock.now() > until:
                    os.kill(worker.pid, signal.SIGKILL)
                select.select([], [], [], 0.01)
            worker.reader.close()
        self._workers.clear()


def _live_no_longer_than(supervisor: int) -> None:
    """Be told to end when the supervisor dies; end now if it has died before."""
    if hasattr(ctypes.CDLL(None), "prctl"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != supervisor:
        os._exit(0)
