"""The passes of a training over its data, and where it stands in them."""

from collections.abc import Iterator
from typing import Any

from shoal.data.loader import ShardedLoader
from shoal.train.checkpoint.snapshot import TrainingPosition
from shoal.train.data_tier import DataTier
from shoal.train.reports import RunReports
from shoal.train.step_coordinator import StepCoordinator


class TrainingEpochs:
    """Of one worker. A script may go through epochs several times: each time is a phase."""

    def __init__(self, together: StepCoordinator, reports: RunReports, tier: DataTier | None = None) -> None:
        """`tier`: the data servers that prepare this worker's batches."""
        self._together, self._progress, self._reports = together, together.progress, reports
        self.loaders: list[ShardedLoader] = []
        """All that were joined, in order."""
        self._tier = tier
        self.number = 0
        """How many the script goes through, once it has said so."""
        self._phase = -1
        self._next: int | None = None
        """The epoch to go on with, between two."""

    def add_loader(self, loader: Any, seed: int) -> ShardedLoader:
        """Deal the samples of the script's `loader` from now on; a run that goes on begins where its pass was."""
        together, number = self._together, len(self.loaders)
        dealt = ShardedLoader(
            loader,
            rank=together.group.rank,
            size=together.group.size,
            seed=seed,
            observer=together.dealing,
            number=number,
            standing=together.resume.standing(number) if together.resume is not None else None,
            place=together.place,
            prepare=self._tier.preparing(loader, number) if self._tier is not None else None,
        )
        self.loaders.append(dealt)
        return dealt

    def position(self, samples: list[int]) -> TrainingPosition:
        """How far the training has come, for a checkpoint at this moment."""
        progress = self._progress
        return TrainingPosition(
            epoch=progress.epoch if self._next is None else self._next,
            step=progress.step + progress.stepped,
            samples=samples,
            phase=max(0, self._phase),
            loaders=[loader.standing() for loader in self.loaders],
        )

    def run(self, number: int) -> Iterator[int]:
        """The epochs of a phase; none follows once the goal is reached."""
        self._phase += 1
        self.number = number
        resume = self._together.resume
        if resume is not None and self._phase > resume.where.phase:
            resume = None
        # the script had gone through all of this phase before the checkpoint
        if resume is not None and self._phase < resume.where.phase:
            return
        for epoch in range(resume.where.epoch if resume is not None else 0, number):
            self._progress.epoch = epoch
            for loader in self.loaders:
                loader.epoch_began(epoch)
            # in the middle of an epoch the loader calls it, before its first batch
            if resume is not None and not resume.midway:
                resume.go_on(self._together.joined)
            yield epoch
            self._progress.pause()
            self._epoch_ended(epoch)
            if self._reports.goal_reached():
                return

    def _epoch_ended(self, epoch: int) -> None:
        """Whatever the script does between epochs is done: a good moment to compare, and to keep."""
        checkpoints = self._together.checkpoints
        if checkpoints is not None and self._together.joined:
            self._together.settle()
            checkpoints.catch_up(self._progress.step, self._progress.samples)
            # a checkpoint taken here goes on with the next epoch, not with the end of this one
            self._next = epoch + 1
            checkpoints.synchronize(self._progress.step, self._progress.samples, epoch_ended=True)
            self._next = None
