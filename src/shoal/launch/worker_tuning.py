"""How many workers a host trains quickest with: one more at a time, until throughput stops rising (CROSSBOW's tuner).

    measure    once all workers train together: samples/s over some seconds and steps, without pauses
    grow       one worker more, while the best number is not far behind
    settle     the fewest workers that come within 1 % of the best rate; nothing is changed any more

Koliousis et al., "CROSSBOW: Scaling deep learning with small batch sizes on multi-GPU servers", PVLDB 2019, adds
learners to each GPU; here they are processes of one host. It stops only after half as many workers again have brought
nothing, because throughput may rise in stairs. Do not use it where steps differ much in length over minutes, or where
the batch of all workers, which grows with their number, must be a given one.
"""

import statistics
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise

SETTLE, WINDOW = 0.5, 4.0
"""Seconds from the first step of all workers to the measurement, and of a measurement at least."""
SLICES = 8
STEPS = 4 * SLICES
"""Of a measurement at least, so that a step more or less does not decide."""
NEAR = 0.99
"""Of the best rate: as good, with fewer workers."""


@dataclass
class ThroughputWindow:
    """Samples over time while the workers stay the same."""

    began: float | None = None
    seen: list[tuple[float, int]] = field(default_factory=list)
    """Every change: when, and how many samples by then."""

    def add(self, at: float, samples: int) -> float | None:
        """Take in the number of samples so far; the rate in samples/s, once it is known."""
        if self.seen and samples < self.seen[-1][1]:  # a worker was replaced, and its samples count anew
            self.seen.clear()
            self.began = None
        if not self.seen or samples > self.seen[-1][1]:
            if self.began is None and self.seen:
                self.began = at
            self.seen.append((at, samples))
        if self.began is None or at < self.began + SETTLE:
            del self.seen[:-1]
            return None
        first = self.seen[0][0]
        whole = self.seen[-1][0] - first
        return self._rate() if len(self.seen) > STEPS and whole >= WINDOW else None

    def _rate(self) -> float:
        """Over slices of as many steps each, but for those with a pause in them, as for an evaluation."""
        cuts = [self.seen[(len(self.seen) - 1) * each // SLICES] for each in range(SLICES + 1)]
        slices = [(b[1] - a[1], max(b[0] - a[0], 1e-9)) for a, b in pairwise(cuts)]
        usual = statistics.median(samples / seconds for samples, seconds in slices)
        kept = [each for each in slices if each[0] / each[1] >= usual / 2]
        return sum(samples for samples, _ in kept) / sum(seconds for _, seconds in kept)


class WorkerTuner:
    """Of one run, which begins with one worker; `most`: for how many it has memory."""

    def __init__(self, most: int) -> None:
        self.most, self.wanted = most, 1
        self.rates: dict[int, float] = {}
        """Samples/s, by the number of workers."""
        self.done = most <= 1
        self._window = ThroughputWindow()

    def observe(self, at: float, workers: int, samples: Counter[int]) -> int | None:
        """Several times a second: `samples` that each slot has trained; how many workers there should be from now on,
        or None if nothing changes."""
        if self.done or workers != self.wanted:
            self._window = ThroughputWindow()
            return None
        rate = self._window.add(at, samples.total())
        if rate is None:
            return None
        self.rates[workers] = rate
        self._window = ThroughputWindow()
        best = self.best
        self.done = workers >= min(self.most, best + max(2, best // 2))
        self.wanted = best if self.done else workers + 1
        return self.wanted if self.wanted != workers else None

    @property
    def best(self) -> int:
        """The fewest workers that come near the best rate so far."""
        goal = NEAR * max(self.rates.values())
        return min(workers for workers, rate in self.rates.items() if rate >= goal)

    def __str__(self) -> str:
        rates = ", ".join(f"{workers}: {rate:,.0f}" for workers, rate in sorted(self.rates.items()))
        return f"samples/s by workers are {rates}"
