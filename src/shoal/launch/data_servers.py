"""Data servers of a run from its launcher's side: processes in which the user's script prepares batches for workers.

They run the user's code, as workers do, and are no members: nobody waits for them, and the run goes on without any. One
that ends is started again, a few times. On one host they listen at files in a folder of the user's alone, between hosts
under keys.
"""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from shoal.core.clock import Deadline
from shoal.core.signals import held_back
from shoal.groups.base import SingleWorkerGroup
from shoal.launch.context import WorkerContext, inherit
from shoal.launch.data_seats import DataServerSeat
from shoal.launch.failures import WorkerProcess, parse
from shoal.launch.stop_requests import reap
from shoal.launch.worker import become_worker
from shoal.launch.worker_output import Ends, WorkerOutput

if TYPE_CHECKING:
    from shoal.launch.job import LaunchJob
    from shoal.launch.placement import WorkerPlacement

RESTARTS = 3
PAUSE = 1.0
"""Seconds before the first restart, doubled for each one after: what ended the server may still be at work."""
# seconds to wait for output: none, because the launcher's loop waits for that of the workers
READ = 0.0


@dataclass
class _ServerSlot:
    seat: DataServerSeat
    process: WorkerProcess | None = None
    starts: int = 0
    due: Deadline | None = field(default_factory=lambda: Deadline.after(0.0))


class DataServerProcesses:
    """Of one launcher, which starts no thread."""

    def __init__(self, job: "LaunchJob", place: "WorkerPlacement", folder: str, leave: Callable[[], object]) -> None:
        """`leave`: called in a new process, to close what is the launcher's alone."""
        self._job, self._leave = job, leave
        seats, self.address = place.seat_data_servers(job.data_servers, folder)
        self._slots = [_ServerSlot(seat) for seat in seats]
        self._notes: list[str] = []
        self._outlets = WorkerOutput(self._hear, lambda process: None)

    def tick(self) -> list[str]:
        """Several times a second: start what is due; returns a line for each thing that the user should know."""
        if self._slots:
            self._outlets.read(READ)
        for slot in self._slots:
            if slot.process is not None and reap(slot.process):
                self._outlets.read(READ)  # its last words may still be in the pipe
                self._ended(slot, slot.process)
            if slot.process is None and slot.due is not None and slot.due.expired:
                self._start(slot)
        notes, self._notes = self._notes, []
        return notes

    def _ended(self, slot: _ServerSlot, process: WorkerProcess) -> None:
        slot.process = None
        again = slot.starts <= RESTARTS
        slot.due = Deadline.after(PAUSE * 2 ** (slot.starts - 1)) if again else None
        self._notes.append(
            f"data server {slot.seat.number} {_how(process)}; "
            + ("it is started again" if again else f"it is not started again, after {RESTARTS} restarts")
        )

    def _start(self, slot: _ServerSlot) -> None:
        slot.starts, slot.due = slot.starts + 1, None
        ends, parent = self._outlets.make(), os.getpid()
        with held_back():  # an interrupt between the fork and the note of it would lose the process
            pid = os.fork()
            if pid == 0:
                self._become(slot.seat, ends, parent)
            slot.process = WorkerProcess(slot.seat.number, pid)
            with contextlib.suppress(OSError):  # both sides do it, so that neither can be too late
                os.setpgid(pid, pid)
        self._outlets.keep(slot.process, ends)

    def _become(self, seat: DataServerSeat, ends: Ends, parent: int) -> NoReturn:
        """In the new process."""
        job, pipes = self._job, self._outlets.leave(ends)
        self._leave()
        become_worker(pipes, parent, 1, lambda: self._enter(seat), job.script, job.arguments)

    def _enter(self, seat: DataServerSeat) -> None:
        job = self._job
        seat.enter()

        def make(context: WorkerContext, plan: Any) -> Any:
            assert job.make_data_run is not None
            return job.make_data_run(context, plan, seat, job.workers)

        inherit(WorkerContext(SingleWorkerGroup(), job.run, job.dir, job.plan, job.seed, begun=True, make=make))

    def _hear(self, number: int, stream: str, text: str) -> None:
        """What the script prints comes from the workers too; what it complains about may be of this process alone."""
        if stream == "err":
            self._notes.append(f"data server {number}: {text}")

    def forget(self) -> None:
        """In another process."""
        self._outlets.forget()

    def close(self) -> None:
        for slot in self._slots:
            slot.due = None
            if slot.process is not None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(slot.process.pid, 9)
                reap(slot.process, wait=True)
        self._outlets.forget()


def _how(process: WorkerProcess) -> str:
    report = parse(process.report)
    if report is not None:
        return f"failed: {report.error}"
    status = process.status or 0
    return f"died of signal {-status}" if status < 0 else f"ended with code {status} before its script trained"
