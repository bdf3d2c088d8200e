"""How many samples a batch may have: additive increase, multiplicative decrease on a latency goal (Clipper, NSDI'17).

A request waits for the batch that is being computed and then for its own, so that each may take half of the goal. A
full batch that was quick enough raises the limit by a step; one that was too slow lowers it by a tenth. The state is
explicit and no clock is read: the caller says how long a batch took.

Clipper's rule alone fails where a batch is slow whatever its size, because other processes have the cores: it ends at
one sample a batch, and a queue of 32 then waits 32 batches instead of one. So a slow batch lowers the limit only where
its samples, not the batch itself, are what takes long.
"""

from dataclasses import dataclass, field
from math import sqrt
from typing import Protocol

DECREASE = 0.9
"""Of the limit after a batch that was too slow; Clipper's own, small because the best size rarely changes much."""
MEMORY = 0.95
"""Weight of what was known when a batch is added: about the last 20 say how long the next one takes."""
LONG_MEMORY = 0.98
"""The same where the cost of a sample is told from noise, which takes more of them: about the last 50."""


class SizingPolicy(Protocol):
    """Says how many samples the next batch may have."""

    @property
    def rows(self) -> int: ...

    def observe(self, rows: int, seconds: float) -> None: ...


@dataclass
class BatchTimes:
    """Seconds of a batch as a line over its samples, by least squares that forget: t = fixed + each · rows."""

    memory: float = MEMORY
    weight: float = 0.0
    rows: float = 0.0
    seconds: float = 0.0
    square: float = 0.0
    product: float = 0.0
    spread: float = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        self.weight = self.weight * self.memory + 1.0
        share = 1.0 / self.weight
        ahead, late = rows - self.rows, seconds - self.seconds
        self.rows += share * ahead
        self.seconds += share * late
        self.square = (1.0 - share) * (self.square + share * ahead * ahead)
        self.product = (1.0 - share) * (self.product + share * ahead * late)
        self.spread = (1.0 - share) * (self.spread + share * late * late)

    def predict(self, rows: float) -> float:
        """Seconds of a batch of `rows`; where all had the same size, as long as those took."""
        if not self.weight:
            return 0.0
        return self.seconds + self._bounded(self._slope) * (rows - self.rows)

    @property
    def fixed(self) -> float:
        """Seconds of a batch beside its samples, which count only with what is surely theirs; 0 before sizes differ.

        One standard error is taken off the cost of a sample, because noise tilts the line of a few batches either way.
        """
        if self.square <= 1e-9:  # the slope of a line through one point
            return 0.0
        left = self.spread - self._slope * self.product  # variance that the line does not explain
        error = sqrt(max(0.0, left) / self.square / self.weight)
        return self.seconds - self._bounded(self._slope - error) * self.rows

    @property
    def _slope(self) -> float:
        return self.product / self.square if self.square > 1e-9 else 0.0

    def _bounded(self, each: float) -> float:
        """Neither part of the time is negative."""
        return min(max(each, 0.0), self.seconds / max(self.rows, 1.0))


@dataclass
class BatchSizer:
    """The limit for the next batch."""

    goal: float
    """Seconds from a request to its answer."""
    most: int
    """Samples in a batch at most, whatever the goal allows."""
    limit: float = 1.0
    step: float = 1.0
    """Samples by which the limit grows; doubled until the first decrease, as TCP's slow start does."""
    _slowed: bool = False
    _times: BatchTimes = field(default_factory=lambda: BatchTimes(LONG_MEMORY))

    @property
    def rows(self) -> int:
        return max(1, int(self.limit))

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a batch of `rows` samples that took `seconds` to compute."""
        self._times.observe(rows, seconds)
        if seconds > self.goal / 2 and not self._is_slow_anyway():
            # Below one sample nothing can be made quicker by making it smaller.
            # From the size of this batch, which may have been below the limit.
            self.limit = max(1.0, min(self.limit, float(rows)) * DECREASE)
            self._slowed = True
        elif rows >= self.rows:  # a batch that was not full says nothing about larger ones
            grown = self.limit + self.step if self._slowed else self.limit * 2
            self.limit = min(float(self.most), grown)

    def _is_slow_anyway(self) -> bool:
        """Whether batches take long by themselves, and longer than their samples.

        The first: half of what a batch may take is gone without a sample. The second: at this size a larger batch
        still answers more requests a second by far more than it is slower, so that a queue is over sooner. Before
        sizes differ nothing is known, and a single sample has to be made two to learn it.
        """
        if self._times.square <= 1e-9:
            return self.rows == 1
        fixed = self._times.fixed
        return fixed > self.goal / 4 and fixed > self._times.seconds / 2


@dataclass
class FixedSizer:
    """The null member: always the same limit; 1 switches batching off."""

    most: int = 1

    @property
    def rows(self) -> int:
        return self.most

    def observe(self, rows: int, seconds: float) -> None:
        """Nothing to learn."""
