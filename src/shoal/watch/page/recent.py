"""The last minutes of a worker, step by step: what the timeline and the culprit line are made of."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from shoal.core.events import StepFinished
from shoal.core.merging import merge_steps

SINGLE = 120
"""Steps that are kept one by one."""
BLOCK_SECONDS, BLOCKS = 0.3, 600
"""What lies further back is merged to blocks of at least this length; so many are kept."""

SUMMED = (
    "seconds", "exposed", "load", "forward", "backward", "forward_backward", "encode", "exchange_wait", "update",
    "other",
)  # fmt: skip
"""What the last minute is added up of, in whole seconds, so that asking for it costs little however fast steps are."""
# Twice the minute that is asked for.
SECONDS = 128

_summed = attrgetter(*SUMMED)


@dataclass
class StepSums:
    """Steps of one worker that were added up: `values` in the order of SUMMED."""

    began: float
    ended: float
    step: int
    """The last one."""
    steps: int
    values: list[float]

    def __getitem__(self, name: str) -> float:
        return self.values[SUMMED.index(name)]

    def add(self, other: "StepSums") -> None:
        self.ended, self.step = other.ended, other.step
        self.steps += other.steps
        self.values = [a + b for a, b in zip(self.values, other.values, strict=True)]


def sums_of(step: StepFinished) -> StepSums:
    return StepSums(step.at, step.at, step.step + step.steps - 1, step.steps, list(_summed(step)))


def add_up(parts: Sequence[StepSums]) -> StepSums | None:
    """All of them as one, which come in order; None if there are none."""
    if not parts:
        return None
    values = [sum(column) for column in zip(*(part.values for part in parts), strict=True)]
    last = parts[-1]
    return StepSums(parts[0].began, last.ended, last.step, sum(part.steps for part in parts), values)


class RecentSteps:
    """Takes the steps of one worker in order; memory does not depend on how fast they are."""

    def __init__(self) -> None:
        self._single: deque[StepFinished] = deque()
        self._blocks: deque[StepFinished] = deque(maxlen=BLOCKS)
        self._sums: deque[StepSums] = deque(maxlen=SECONDS)

    def add(self, step: StepFinished) -> None:
        self._single.append(step)
        if len(self._single) > SINGLE:
            self._merge(self._single.popleft())
        # Summed as it comes, so that a minute is at most a hundred or so parts to add.
        part = sums_of(step)
        if self._sums and 0 <= step.at - self._sums[-1].began < 1.0:
            self._sums[-1].add(part)
        else:
            self._sums.append(part)

    def _merge(self, step: StepFinished) -> None:
        last = self._blocks[-1] if self._blocks else None
        # Not across a pause, which would be drawn as if the worker had been busy in it.
        if last is not None and last.seconds < BLOCK_SECONDS and step.at - step.seconds - last.at < BLOCK_SECONDS:
            self._blocks[-1] = merge_steps([last, step])
        else:
            self._blocks.append(step)

    def since(self, at: float) -> Iterator[StepFinished]:
        """What ended after this moment, oldest first."""
        for steps in (self._blocks, self._single):
            yield from (step for step in steps if step.at > at)

    def sums(self, since: float) -> StepSums | None:
        """What ended after this moment, added up, to the second."""
        return add_up([part for part in self._sums if part.ended > since])

    @property
    def last(self) -> StepFinished | None:
        return self._single[-1] if self._single else None
