"""What the script tells of its training: numbers of a step, results, and whether they are good enough to stop."""

import time

from torch import Tensor

from shoal.core.events import ResultsReported, ValuesLogged
from shoal.core.goal import TrainingGoal, goal_from_environment
from shoal.core.journal import EventJournal
from shoal.groups.base import WorkerGroup
from shoal.train.progress import StepProgress


class RunReports:
    """Of one worker."""

    def __init__(self, journal: EventJournal, group: WorkerGroup, progress: StepProgress) -> None:
        self._journal, self._group, self._progress = journal, group, progress
        self._goal: TrainingGoal | None = goal_from_environment()
        self.last: dict[str, float] = {}
        """What was reported last."""

    def log(self, scalars: dict[str, float | Tensor]) -> None:
        """Record numbers of the step under way."""
        values = _numbers(scalars)
        if "loss" in values:
            self._group.board.loss(self._group.slot, values["loss"])
        self._journal.emit(ValuesLogged(at=time.time(), step=self._progress.step, values=values))

    def report(self, metrics: dict[str, float | Tensor]) -> None:
        """Record results, and write out what was recorded so far."""
        progress, self.last = self._progress, _numbers(metrics)
        told = ResultsReported(at=time.time(), step=progress.step, epoch=progress.epoch, metrics=self.last)
        self._journal.emit(told)
        self._journal.flush()

    def goal_reached(self) -> bool:
        """Whether worker 0's last report is what $SHOAL_UNTIL asks, for all workers alike; a collective call."""
        if self._goal is None:
            return False
        return self._group.gather(b"y" if self._goal.met(self.last) else b"")[0] == b"y"


def _numbers(values: dict[str, float | Tensor]) -> dict[str, float]:
    return {name: float(v.detach() if isinstance(v, Tensor) else v) for name, v in values.items()}
