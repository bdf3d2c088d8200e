"""Keeps the live run's file up to date while the launcher works, and removes it at the end."""

import os
import platform
import sys
import time
from collections.abc import Sequence

import msgspec

from shoal.core.errors import UsageError
from shoal.core.process import HostProcess
from shoal.hosts.arena import SharedArena
from shoal.lab.load import write_lab
from shoal.launch.failures import WorkerProcess
from shoal.launch.job import LaunchJob
from shoal.launch.live_runs import NoticeSlot, RunNotice, live, own_namespace, post, remove
from shoal.launch.run_requests import Asked, take_request
from shoal.launch.supervisor import RunSupervisor


class RunAnnouncement:
    """Of one run. What cannot be written is said once, and the run goes on without it."""

    def __init__(self, job: LaunchJob, arena: SharedArena) -> None:
        self._lab = job.lab is not None
        self._told: RunNotice | None = None
        self._failed = False
        self._known: dict[int, HostProcess] = {}
        self._base = RunNotice(
            run=job.run,
            dir=str(job.dir),
            plan=job.plan,
            launcher=HostProcess.of(os.getpid()),
            since=time.time(),
            board=arena.descriptor,
            lab=write_lab(job.lab) if job.lab is not None else "",
            attempt=job.attempt,
            namespace=own_namespace(),
        )

    def tick(self, workers: Sequence[WorkerProcess], supervisor: RunSupervisor | None, stopping: bool) -> None:
        """Several times a second; writes only what is new."""
        if self._failed:
            return
        newest = {worker.rank: worker for worker in workers}
        notice = msgspec.structs.replace(
            self._base,
            slots=tuple(self._slot(worker, supervisor) for _, worker in sorted(newest.items())),
            members=supervisor.members if supervisor is not None else tuple(sorted(newest)),
            coordinator=self._process(supervisor.handle.pid)
            if supervisor is not None and supervisor.handle.pid
            else None,
            folder=str(supervisor.folder) if supervisor is not None else "",
            stopping=stopping,
            plan=(supervisor.plan if supervisor is not None else "") or self._base.plan,
            asked=supervisor.asked if supervisor is not None else "",
            switched=supervisor.switched if supervisor is not None else "",
            scaled=supervisor.scaling.done if supervisor is not None else "",
            room=len(supervisor.scaling.free) if supervisor is not None else 0,
            least=supervisor.policy.least if supervisor is not None else 1,
        )
        if notice != self._told:
            self._post(notice)

    def take(self, kind: type[Asked]) -> Asked | None:
        """What the user asks of the run by `shoal switch` or `shoal scale`, once."""
        return take_request(self._base.name, kind) if self._told is not None else None

    def _post(self, notice: RunNotice) -> None:
        try:
            if self._told is None:
                live()  # sweeps what was left by runs that were killed
            post(notice)
            self._told = notice
        except (OSError, UsageError) as error:
            self._failed = True
            sys.stderr.write(f"shoal: note: shoal ps will not show this run: {error}\n")

    def _slot(self, worker: WorkerProcess, supervisor: RunSupervisor | None) -> NoticeSlot:
        host = str(worker.rank) if self._lab else platform.node()
        fate, reason = "" if worker.status is None else "lost" if worker.status else "ended", ""
        starts = 1
        if supervisor is not None:
            place = supervisor.slots[worker.rank]
            starts, reason = place.starts, place.reasons[-1] if place.reasons else ""
            if worker.status is not None and place.released:
                fate = "left"
            elif worker.status is not None and worker.lost:
                fate = "quarantined" if place.quarantined else "starting again" if place.due is not None else "lost"
        process = self._process(worker.pid)
        return NoticeSlot(worker=worker.rank, host=host, process=process, starts=starts, fate=fate, reason=reason)

    def _process(self, pid: int) -> HostProcess:
        """Asked while it lives, or is a child that was not waited for: its number stands for it as long."""
        if pid not in self._known:
            self._known[pid] = HostProcess.of(pid)
        return self._known[pid]

    def close(self) -> None:
        if self._told is not None:
            remove(self._base.name)
