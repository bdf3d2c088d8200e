"""How many servers a run trains quickest with: neighbours of the best number are tried, and the better is kept.

    measure    samples/s of all workers over some seconds and steps, without pauses
    try        twice and half as many servers as the quickest so far, then one more and one less
    settle     the fewest that come near the best rate, once all neighbours of both were measured

Dolphin (Apache REEF) reconfigures servers and workers while they train, by a cost model of what it has measured; here
throughput itself is measured, so that no model has to be right. Do not use it where steps differ much in length over
minutes, or for short runs: every number of servers is trained with for some seconds.
"""

from collections import Counter

from shoal.launch.worker_tuning import ThroughputWindow

NEAR = 0.97
"""Of the best rate: as good, with fewer servers."""
MOST_TRIED = 16


class ServerTuner:
    """Of one run, which has `first` servers; `most`: the most that are tried."""

    def __init__(self, first: int, most: int = MOST_TRIED) -> None:
        self.most, self.wanted = max(first, most), first
        self.rates: dict[int, float] = {}
        """Samples/s, by the number of servers."""
        self.done = False
        self._window = ThroughputWindow()

    def observe(self, at: float, servers: int, samples: Counter[int]) -> int | None:
        """Several times a second: `samples` that each slot has trained; how many servers there should be from now on,
        or None if nothing changes."""
        if self.done or servers != self.wanted:
            self._window = ThroughputWindow()
            return None
        rate = self._window.add(at, samples.total())
        if rate is None:
            return None
        self.rates[servers], self._window = rate, ThroughputWindow()
        quickest = max(self.rates, key=lambda each: self.rates[each])
        near = [*self._neighbours(quickest), *self._neighbours(self.best)]
        untried = [each for each in near if each not in self.rates]
        self.done = not untried
        self.wanted = untried[0] if untried else self.best
        return self.wanted if self.wanted != servers else None

    @property
    def best(self) -> int:
        """The fewest servers that come near the best rate so far."""
        goal = NEAR * max(self.rates.values())
        return min(servers for servers, rate in self.rates.items() if rate >= goal)

    def _neighbours(self, servers: int) -> list[int]:
        near = (2 * servers, servers // 2, servers + 1, servers - 1)
        return [each for each in dict.fromkeys(near) if 1 <= each <= self.most]

    def __str__(self) -> str:
        rates = ", ".join(f"{servers}: {rate:,.0f}" for servers, rate in sorted(self.rates.items()))
        return f"samples/s by servers are {rates}"
