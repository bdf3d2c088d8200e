"""Stages of a job, each with a number of workers of its own: `run.stage("large batches", workers=4)`.

    all workers      note the stage (event StageBegan), and how many workers it wants
    worker 0         asks the launcher between two steps, as `shoal scale` does
    launcher         starts workers that are missing, lets those go that are too many (`launch/scaling.py`)

Nobody waits for the change: workers that stand still would cost core-seconds, too. The launcher is asked for a number
and not for a difference, so a request that is made again changes nothing: whoever is worker 0 after a loss asks again.

Huang et al., "FlexPS: Flexible Parallelism Control in Parameter Server Architecture", PVLDB 2018. Do not use it for
stages of a few seconds: a worker takes about a second to start.
"""

import time
from pathlib import Path

from shoal.core.errors import UsageError
from shoal.core.events import StageBegan
from shoal.groups.base import WorkerGroup
from shoal.launch.live_runs import live
from shoal.launch.run_requests import MOST_SCALED, ScaleRequest, write_request
from shoal.train.progress import StepProgress

LONGEST_NAME = 100


class WorkerStages:
    """Of one worker. Used by the training thread."""

    def __init__(self, group: WorkerGroup, progress: StepProgress, folder: Path) -> None:
        """`folder`: of the run, by which its launcher is found."""
        self._group, self._progress, self._folder = group, progress, folder
        self._stage: tuple[str, int] | None = None
        self._asked = False
        """Whether this process has told the launcher of the stage."""

    def begin(self, name: str, workers: int) -> None:
        if not name or len(name) > LONGEST_NAME or not name.isprintable():
            raise UsageError(f"stage({name!r}): the name must be 1 to {LONGEST_NAME} printable characters")
        if not 1 <= workers <= MOST_SCALED:
            raise UsageError(
                f"stage({name!r}, workers={workers}): workers must be a whole number from 1 to {MOST_SCALED}"
            )
        if (name, workers) == self._stage:
            return
        self._stage, self._asked = (name, workers), False
        step = self._progress.step + self._progress.stepped
        self._progress.sink.emit(StageBegan(at=time.time(), step=step, stage=name, workers=workers))
        self.step_ended()

    def step_ended(self) -> None:
        """Between two steps: whoever is worker 0 now asks for the workers of the stage, once."""
        if self._stage is None or self._asked or self._group.rank > 0:
            return
        self._asked = True
        name, workers = self._stage
        if not self._group.session.elastic:
            if self._group.size not in (1, workers):
                self._warn(name, workers, "its members are fixed; start it with shoal run, without --trusted")
            return
        # by its folder, because two runs in different folders may have the same name
        notice = next((each for each in live() if Path(each.dir).resolve() == self._folder.resolve()), None)
        if notice is None:
            self._warn(name, workers, "its launcher is not on this machine")
        else:
            write_request(notice, ScaleRequest(workers=workers))

    def _warn(self, name: str, workers: int, why: str) -> None:
        self._progress.warn(f"stage {name!r} wants {workers} workers, and the run keeps {self._group.size}: {why}")
