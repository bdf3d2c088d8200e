"""The launcher's side of `shoal ps`: keeps the run's notice as things change, and takes it away at the end."""

import os
import platform
import sys
import time
from collections.abc import Sequence

import msgspec

from shoal.cluster.arena import Arena
from shoal.cluster.launch.blame import Worker
from shoal.cluster.launch.job import Job
from shoal.cluster.launch.survival import Survival
from shoal.cluster.notice import Notice, Seat, live, own_namespace, post, remove
from shoal.core.errors import UsageError
from shoal.core.process import Process


class Announcement:
    """Of one run. What cannot be written is said once, and the run goes on without it."""

    def __init__(self, job: Job, arena: Arena) -> None:
        self._lab = job.lab is not None
        self._told: Notice | None = None
        self._failed = False
        self._known: dict[int, Process] = {}
        self._base = Notice(
            run=job.run,
            dir=str(job.dir),
            plan=job.plan,
            launcher=Process.of(os.getpid()),
            since=time.time(),
            board=arena.descriptor,
            lab=str(job.lab or ""),
            attempt=job.attempt,
            namespace=own_namespace(),
        )

    def tick(self, workers: Sequence[Worker], survival: Survival | None, stopping: bool) -> None:
        """Several times a second; writes only what is new."""
        if self._failed:
            return
        newest = {worker.rank: worker for worker in workers}
        notice = msgspec.structs.replace(
            self._base,
            seats=tuple(self._seat(worker, survival) for _, worker in sorted(newest.items())),
            members=survival.members if survival is not None else tuple(sorted(newest)),
            coordinator=self._process(survival.handle.pid) if survival is not None and survival.handle.pid else None,
            folder=str(survival.folder) if survival is not None else "",
            stopping=stopping,
        )
        if notice != self._told:
            self._post(notice)

    def _post(self, notice: Notice) -> None:
        try:
            if self._told is None:
                live()  # sweeps what was left by runs that were killed
            post(notice)
            self._told = notice
        except (OSError, UsageError) as error:
            self._failed = True
            sys.stderr.write(f"shoal: note: shoal ps will not show this run: {error}\n")

    def _seat(self, worker: Worker, survival: Survival | None) -> Seat:
        host = str(worker.rank) if self._lab else platform.node()
        fate, reason = "" if worker.status is None else "lost" if worker.status else "ended", ""
        starts = 1
        if survival is not None:
            place = survival.seats[worker.rank]
            starts, reason = place.starts, place.reasons[-1] if place.reasons else ""
            if worker.status is not None and worker.lost:
                fate = "quarantined" if place.quarantined else "starting again" if place.due is not None else "lost"
        process = self._process(worker.pid)
        return Seat(worker=worker.rank, host=host, process=process, starts=starts, fate=fate, reason=reason)

    def _process(self, pid: int) -> Process:
        """Asked while it lives, or is a child that was not waited for: its number stands for it as long."""
        if pid not in self._known:
            self._known[pid] = Process.of(pid)
        return self._known[pid]

    def close(self) -> None:
        if self._told is not None:
            remove(self._base.name)
