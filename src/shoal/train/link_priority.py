"""A run that lets others of this host go first while they have less left to send (`transport/job_priority.py`).

What is left is the steps to come times the bytes of a step: those that the exchanges have sent so far, on average, and
before the first step those of the parameters. Steps follow from the joined loader and `run.epochs`, or are declared.
"""

import math
import time
from collections.abc import Sequence

from shoal.core.events import RunEvent, WarningRaised
from shoal.groups.base import WorkerGroup
from shoal.groups.links import LinkedGroup
from shoal.hosts.job_board import JobBoard
from shoal.train.epochs import TrainingEpochs
from shoal.train.joined import JoinedModels
from shoal.train.progress import StepProgress
from shoal.transport.job_priority import JobPriority, priority_from_environment

NO_LINKS = "--priority has no effect here: it orders what runs send over links between hosts"
NO_LENGTH = (
    "--priority shortest: the script joins no loader, or does not use run.epochs, so nobody knows how many steps it "
    "has, and it stands back for all other runs; declare them: --priority shortest:2000"
)


class RunPriority:
    """Of one worker. `declared`: how many steps the run has; 0 if the script tells."""

    def __init__(
        self, declared: int, progress: StepProgress, epochs: TrainingEpochs, joined: Sequence[JoinedModels]
    ) -> None:
        self._declared, self._progress, self._epochs, self._joined = declared, progress, epochs, joined
        self._warned = False

    @property
    def steps(self) -> int:
        """How many steps the run has in all; 0 if nobody knows."""
        epochs = self._epochs
        return self._declared or (epochs.number * len(epochs.loaders[0]) if epochs.loaders else 0)

    def count_left(self) -> float:
        """Return the bytes this worker has to send until the run ends; infinite if nobody knows."""
        done, sent = self._progress.step, self._progress.sent_bytes
        if not self.steps:
            return math.inf
        parameters = [p for each in self._joined for p in each.members.parameters if p.requires_grad]
        step = sent / done if done and sent else sum(p.numel() * p.element_size() for p in parameters)
        return max(0, self.steps - done) * step

    def tell(self) -> RunEvent | None:
        """Say once, when steps are being made, that nobody knows how many there will be."""
        if self.steps or not self._progress.step or self._warned:
            return None
        self._warned = True
        return WarningRaised(at=time.time(), text=NO_LENGTH)


def begin_priority(
    run: str, group: WorkerGroup, progress: StepProgress, epochs: TrainingEpochs, joined: Sequence[JoinedModels]
) -> None:
    """Let other runs go first if $SHOAL_PRIORITY says so."""
    declared = priority_from_environment()
    if declared is None:
        return
    if not isinstance(group, LinkedGroup):
        progress.warn(NO_LINKS)
        return
    known = RunPriority(declared, progress, epochs, joined)
    priority = JobPriority(run, JobBoard(run), known.count_left)
    progress.stood_back = priority.seconds
    progress.reports.append(known.tell)
    group.mesh.set_priority(priority)
