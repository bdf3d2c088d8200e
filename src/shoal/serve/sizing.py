"""How many samples a batch may have: additive increase, multiplicative decrease on a latency goal (Clipper, NSDI'17).

A request waits for the batch that is being computed and then for its own, so that each may take half of the goal. A
full batch that was quick enough raises the limit by a step; one that was too slow lowers it by a tenth. The state is
explicit and no clock is read: the caller says how long a batch took.
"""

from dataclasses import dataclass

DECREASE = 0.9
"""Of the limit after a batch that was too slow; Clipper's own, small because the best size rarely changes much."""


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

    @property
    def rows(self) -> int:
        return max(1, int(self.limit))

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a batch of `rows` samples that took `seconds` to compute."""
        if seconds > self.goal / 2:
            # Below one sample nothing can be made quicker by making it smaller.
            self.limit = max(1.0, min(self.limit, float(rows)) * DECREASE)
            self._slowed = True
        elif rows >= self.rows:  # a batch that was not full says nothing about larger ones
            grown = self.limit + self.step if self._slowed else self.limit * 2
            self.limit = min(float(self.most), grown)


MEMORY = 0.95
"""Weight of what was known when a batch is added."""


@dataclass
class BatchTimes:
    """Seconds of a batch as a line over its samples, by least squares that forget: t = fixed + each · rows."""

    weight: float = 0.0
    rows: float = 0.0
    seconds: float = 0.0
    square: float = 0.0
    product: float = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        self.weight = self.weight * MEMORY + 1.0
        share = 1.0 / self.weight
        ahead, late = rows - self.rows, seconds - self.seconds
        self.rows += share * ahead
        self.seconds += share * late
        self.square = (1.0 - share) * (self.square + share * ahead * ahead)
        self.product = (1.0 - share) * (self.product + share * ahead * late)

    def predict(self, rows: float) -> float:
        """Seconds of a batch of `rows`; where all had the same size, as long as those took."""
        if not self.weight:
            return 0.0
        each = self.product / self.square if self.square > 1e-9 else 0.0
        each = min(max(each, 0.0), self.seconds / max(self.rows, 1.0))  # neither part of the time is negative
        return self.seconds + each * (rows - self.rows)


@dataclass
class FixedSizer:
    """The null member: always the same limit; 1 switches batching off."""

    most: int = 1

    @property
    def rows(self) -> int:
        return self.most

    def observe(self, rows: int, seconds: float) -> None:
        """Nothing to learn."""
