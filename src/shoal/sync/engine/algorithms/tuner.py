"""Which all-reduce is quicker here, the ring or reduce-scatter and all-gather? Both are tried; all workers agree.

The ring keeps every link busy and passes 2 (p-1) latencies; the other needs two, and wastes bandwidth where p-1
streams meet. Which counts for more depends on the network, so the first exchanges of a view take turns:

    exchange     1 2   | 3 4 5 6 7 8    | 9 …
    algorithm    usual | both, in turns | the quicker

After each exchange every worker tells all others how long it waited after its last tensor had left. The shortest of
these is the time of the last worker to arrive, so it includes no waiting for slow workers. All get the same figures
and choose alike. Both add up in the same order, so the choice changes no bit. Trials are repeated now and then, and
when the members change. Online choice among algorithms: Faraj & Yuan, "Automatic generation and tuning of MPI
collective communication routines", ICS 2005. Not for one-off sums: a trial takes eight exchanges.
"""

from collections.abc import Sequence

WARM, TRIALS = 2, 6
AGAIN = 1000
"""Exchanges after which the trials are repeated, because the network may have changed."""
BETTER = 0.95
"""The usual algorithm is left only for one that takes less than this share of its time."""
NOTHING = -1.0
"""What a worker tells that has measured nothing."""


class AlgorithmTuner:
    """For one engine. `algorithms`: the usual one first."""

    def __init__(self, algorithms: tuple[str, str]) -> None:
        self.algorithms = algorithms
        self.restart()

    def restart(self) -> None:
        """Forget all figures: the members have changed, or the figures are old."""
        self._number = 0
        self._told: dict[str, list[float]] = {name: [] for name in self.algorithms}
        self._chosen = self.algorithms[0]

    def begin_exchange(self) -> None:
        """Count an exchange that begins."""
        self._number += 1
        if self._number > AGAIN:
            self.restart()
            self._number = 1

    @property
    def trying(self) -> bool:
        return WARM < self._number <= WARM + TRIALS

    @property
    def algorithm(self) -> str:
        """The algorithm of the exchange under way."""
        return self.algorithms[(self._number - WARM - 1) % 2] if self.trying else self._chosen

    def record(self, seconds: Sequence[float | None]) -> None:
        """Take in how long each worker's last exchange took, by its own clock; all workers get the same figures."""
        told = [each for each in seconds if each is not None and each >= 0]
        # one figure missing: other workers may have it, and all must decide by the same figures
        if not self.trying or len(told) < len(seconds):
            return
        self._told[self.algorithm].append(min(told))
        # medians: one slow exchange says nothing of an algorithm
        usual, other = (sorted(self._told[name]) for name in self.algorithms)
        if len(usual) == len(other) == TRIALS // 2:
            self._chosen = self.algorithms[other[len(other) // 2] < BETTER * usual[len(usual) // 2]]
