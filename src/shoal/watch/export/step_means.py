"""Steps of a worker as scalars, one set a second: more would be stored, and nobody could see them."""

from shoal.core.events import StepFinished
from shoal.core.merging import merge_steps
from shoal.watch.tensorboard import scalars

SECONDS = 1.0


class StepMeans:
    """Collects the steps of one worker."""

    def __init__(self) -> None:
        self._steps: list[StepFinished] = []

    def add(self, step: StepFinished) -> StepFinished | None:
        """Take a step; gives the merged steps of a second when it is full."""
        self._steps.append(step)
        return self.take() if sum(each.seconds for each in self._steps) >= SECONDS else None

    def take(self) -> StepFinished | None:
        """What has been collected, if anything."""
        steps, self._steps = self._steps, []
        return merge_steps(steps) if steps else None


__all__ = ["StepMeans", "scalars"]
