"""Which way is quicker here, the ring or the owners of parts? Both are tried, and all workers learn the same answer.

The ring keeps every link busy and passes 2 (p-1) latencies; owners need two, and waste a part of the bandwidth where
p-1 streams meet. Which counts for more depends on the network, so the first exchanges of a view take turns:

    exchange   1 2 | 3 4 5 6 7 8 | 9 …
    way        usual | owners, ring in turns | the quicker

After each exchange every worker says how long it waited for the last bucket once its own had left. The shortest of
these is that of the worker that came last, so it holds no waiting for slow workers. All hear the same figures and
choose alike. Both ways add up in the same order: the choice changes no bit. Trials are made again now and then, and
whenever the members change. Online choice among algorithms: Faraj & Yuan, "Automatic generation and tuning of MPI
collective communication routines", ICS 2005. Not for one-off sums: a trial takes eight exchanges.
"""

from collections.abc import Sequence

WARM, TRIALS = 2, 6
AGAIN = 1000
"""Exchanges after which the network may have changed."""
BETTER = 0.95
"""The usual way is left only for one that takes less than this share of its time."""
NOTHING = -1.0


class AlgorithmTuner:
    """Of one engine in one view. `ways`: the usual one first."""

    def __init__(self, ways: tuple[str, str]) -> None:
        self.ways = ways
        self.begin()

    def begin(self) -> None:
        """Members have changed, or long have not: nothing is known."""
        self._number = 0
        self._told: dict[str, list[float]] = {way: [] for way in self.ways}
        self._chosen = self.ways[0]

    def next(self) -> None:
        """An exchange begins."""
        self._number += 1
        if self._number > AGAIN:
            self.begin()
            self._number = 1

    @property
    def trying(self) -> bool:
        return WARM < self._number <= WARM + TRIALS

    @property
    def way(self) -> str:
        return self.ways[(self._number - WARM - 1) % 2] if self.trying else self._chosen

    def heard(self, seconds: Sequence[float | None]) -> None:
        """How long the exchange took that is over, each by its own clock; all hear the same."""
        told = [each for each in seconds if each is not None and each >= 0]
        if not self.trying or len(told) < len(seconds):
            return
        self._told[self.way].append(min(told))
        usual, other = (sorted(self._told[way]) for way in self.ways)
        if len(usual) == len(other) == TRIALS // 2:
            self._chosen = self.ways[other[len(other) // 2] < BETTER * usual[len(usual) // 2]]
