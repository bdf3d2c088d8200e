"""The last minutes of a worker, step by step: what the timeline and the culprit line are made of."""

from collections import deque
from collections.abc import Iterator

from shoal.core.events import StepFinished
from shoal.core.merging import merge_steps

SINGLE = 120
"""Steps that are kept one by one."""
BLOCK_SECONDS, BLOCKS = 0.3, 600
"""What lies further back is merged to blocks of at least this length; so many are kept."""


class RecentSteps:
    """Takes the steps of one worker in order; memory does not depend on how fast they are."""

    def __init__(self) -> None:
        self._single: deque[StepFinished] = deque()
        self._blocks: deque[StepFinished] = deque(maxlen=BLOCKS)

    def add(self, step: StepFinished) -> None:
        self._single.append(step)
        if len(self._single) > SINGLE:
            self._merge(self._single.popleft())

    def _merge(self, step: StepFinished) -> None:
        last = self._blocks[-1] if self._blocks else None
        if last is not None and last.seconds < BLOCK_SECONDS and step.at - step.seconds - last.at < BLOCK_SECONDS:
            self._blocks[-1] = merge_steps([last, step])
        else:
            self._blocks.append(step)

    def since(self, at: float) -> Iterator[StepFinished]:
        """What ended after this moment, oldest first."""
        for steps in (self._blocks, self._single):
            yield from (step for step in steps if step.at > at)

    @property
    def last(self) -> StepFinished | None:
        return self._single[-1] if self._single else None
