"""How long a turn of `wire.py` is: one run passes all rates, from fast to slow, some steps at each.

    step   0 1 2 | 3 … 27 | 28 29 | 30 … 40 | 41 42 | 43 44 | 45 …
           warm    counted   warm    counted   warm   counted
    rate   no limit        | 1 Gbit/s        | 100 Mbit/s   | 10 Mbit/s

A start costs seconds, a change of the rate none. `wire(auto)` chooses once, so it has a run of its own at each rate,
and its steps count once it has chosen.
"""

from dataclasses import dataclass

from network_report import ideal_seconds

from shoal.bench.peers.ddp import POWER_FROM
from shoal.sync.exchange.auto import MEASURED, SKIPPED

AUTO = "wire(auto)"
SHARES = {
    "alone": 0.0,
    "ddp": 1.0,
    "ddp-fp16": 0.5,
    "ddp-powersgd": 0.02,
    "allreduce": 1.0,
    "fp16": 0.5,
    "int8": 0.26,
    "onebit": 0.05,
    "topk(0.01)": 0.04,
    "dgc(0.001)": 0.02,
    "lowrank(1)": 0.02,
    AUTO: 1.0,
}
"""Every contestant, and about what it sends of all gradients: only to choose how many steps a turn has."""
FLOOR_SECONDS = {"mlp": 0.025, "transformer": 0.15}
"""About what a step takes without a network, for each host: the hosts share two cores."""
LEAST, MOST = 2, 40
WARM = POWER_FROM + 1
"""Steps at the beginning that do not count: allocations, caches, PowerSGD's own beginning."""
CHOSEN = SKIPPED + MEASURED + 3
"""Steps of `wire(auto)` that do not count: those before it chooses, and the first with what it chose."""
LIMITED_FROM = 1
SHORT_STEP, LONG_STEP, ENDLESS_STEP = 1.0, 3.0, 8.0
"""Seconds of a step from which on one less does not count at a new rate; from which on one counts; and from which on it
is the first, for TCP gets used to the rate meanwhile."""
REPEATED_UP_TO = 1.2
"""Seconds of a step up to which turns are repeated: longer ones vary less, for their time is the network's."""
AUTO_UP_TO = 5.0
"""Seconds of an uncoded step up to which `wire(auto)` is measured: it begins with nine of them."""


@dataclass(frozen=True)
class Stage:
    """Some steps at one rate."""

    rate: int
    """Bits a second; 0: no limit."""
    uncounted: int
    counted: int

    @property
    def steps(self) -> int:
        return self.uncounted + self.counted


@dataclass(frozen=True)
class Cell:
    """Where contestants meet, but for the rate."""

    model: str
    hosts: int
    bytes_: int
    """Of all gradients."""

    def expected(self, name: str, rate: int) -> float:
        """About the seconds of a step."""
        ideal = ideal_seconds(self.bytes_, self.hosts, rate, 0.0) or 0.0
        return FLOOR_SECONDS[self.model] * max(2, self.hosts) + SHARES[name] * ideal

    def counted(self, name: str, rate: int, seconds: float) -> int:
        expected = self.expected(name, rate)
        return 1 if expected >= LONG_STEP else max(LEAST, min(MOST, int(seconds / expected)))

    def stages(self, name: str, rates: list[int], seconds: float) -> list[Stage]:
        """Of one run; `seconds` is about what is counted at each rate."""
        free = self.counted(name, 0, seconds) if 0 in rates else 0
        found = [Stage(0, WARM, free)]
        for rate in sorted((rate for rate in rates if rate), reverse=True):
            expected = self.expected(name, rate)
            warm = 2 if expected < SHORT_STEP else int(expected < ENDLESS_STEP)
            found.append(Stage(rate, warm, self.counted(name, rate, seconds)))
        return found

    def auto_stage(self, rate: int, seconds: float) -> Stage:
        """Of a run of `wire(auto)`; what it chooses is about as fast as onebit."""
        return Stage(rate, CHOSEN, self.counted("onebit" if rate else AUTO, rate, seconds))

    def repeated(self, rate: int) -> bool:
        return self.soon("allreduce", rate)

    def soon(self, name: str, rate: int) -> bool:
        return self.expected(name, rate) <= REPEATED_UP_TO

    def has_auto(self, rate: int) -> bool:
        return self.expected("allreduce", rate) <= AUTO_UP_TO


def limits_of(stages: list[Stage]) -> dict[int, int]:
    """From which step on which rate."""
    found, step = {}, 0
    for stage in stages:
        if stage.rate:
            found[step] = stage.rate
        step += stage.steps
    return found


def sliced(stages: list[Stage], values: list[float]) -> dict[int, list[float]]:
    """Rate -> what was counted at it, of a value for every step."""
    found, step = {}, 0
    for stage in stages:
        found[stage.rate] = values[step + stage.uncounted : step + stage.steps]
        step += stage.steps
    return found
