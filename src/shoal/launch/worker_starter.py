"""Starts the workers of one host: forks each from the launcher, and makes it a member of the run's group."""

import contextlib
import os
from collections.abc import Callable
from typing import NoReturn

from shoal.core.signals import held_back
from shoal.groups.base import deadline_seconds
from shoal.hosts.arena import SharedArena
from shoal.launch.context import WorkerContext, inherit
from shoal.launch.failures import WorkerProcess
from shoal.launch.job import LaunchJob
from shoal.launch.lab_placement import LabPlacement
from shoal.launch.launcher_services import LauncherServices
from shoal.launch.placement import LocalPlacement, WorkerPlacement
from shoal.launch.supervisor import RunSupervisor
from shoal.launch.worker import become_worker
from shoal.launch.worker_output import Ends, WorkerOutput


class WorkerStarter:
    """`start` is called by the launcher; `_become` and `enter` run in the new process."""

    def __init__(
        self, job: LaunchJob, place: WorkerPlacement, outlets: WorkerOutput, services: LauncherServices
    ) -> None:
        self.job, self.place = job, place
        self._outlets, self._services = outlets, services
        self._supervisor: RunSupervisor | None = None

    def start(self, rank: int, supervisor: RunSupervisor | None, started: Callable[[WorkerProcess], object]) -> None:
        """Fork worker `rank`. `started` notes the process before any signal can interrupt."""
        self._supervisor = supervisor
        if supervisor is not None:
            supervisor.started(rank)
        ends = self._outlets.make()
        parent = os.getpid()
        with held_back():  # an interrupt between the fork and the note of it would lose the worker
            pid = os.fork()
            if pid == 0:
                self._become(rank, ends, parent)
            worker = WorkerProcess(rank, pid)
            started(worker)
            with contextlib.suppress(OSError):  # both sides do it, so that neither can be too late
                os.setpgid(pid, pid)
        self._outlets.keep(worker, ends)

    def _become(self, rank: int, ends: Ends, parent: int) -> NoReturn:
        job, pipes = self.job, self._outlets.leave(ends)
        # The launcher's ends of its channels: while a worker holds one, the launcher's death is not noticed.
        self._services.forget()
        become_worker(pipes, parent, job.threads, lambda: self.enter(rank), job.script, job.arguments)

    def enter(self, rank: int) -> None:
        """Go to the worker's place, and become a member of the group."""
        job, supervisor = self.job, self._supervisor
        session = supervisor.session(rank, deadline_seconds()) if supervisor is not None else None
        group = self.place.enter(rank, job.capacity, session)
        # A newcomer joins later, once it is ready, so that the others need not wait for its script to load.
        if session is not None and supervisor is not None and supervisor.founds(rank):
            session.start()
        inherit(
            WorkerContext(
                group,
                job.run,
                job.dir,
                job.plan,
                job.seed,
                begun=True,
                speed=self.place.speed,
                replay=self.place.replay,
                servers=self._services.folder,
                data=self._services.data,
                make=job.make,
                checkpoint=job.checkpoint,
                resume=job.resume,
                attempt=job.attempt,
            )
        )


def place_workers(job: LaunchJob, arena: SharedArena) -> WorkerPlacement:
    """Return where a job's workers go: where it says, into its lab, or on this host."""
    if job.place is not None:
        return job.place(job, arena)
    if job.lab is None:
        return LocalPlacement(arena)
    return LabPlacement(job.lab, arena, job.dir, job.survive is not None, job.workers)
