"""Unequal machines: each worker's part of every batch follows its speed, so that all are done at the same time.

    worker       0       1       2       3 (four times slower)
    equal       32 ..   32 ..   32 ..   32 ########            a step takes as long as the slowest worker
    balanced    40 #    39 #    39 #    10 #                   the step, its samples and its result are the same

A worker knows how long it was busy with its samples, which does not include waiting for others. Workers tell each
other these figures where they synchronize anyway (`checkpoint/coordinator.py`), and all compute the same shares from
them. Gradients are weighted by samples as in any uneven step, so training still equals one process with the
whole batch.
"""

import math
from collections.abc import Mapping, Sequence

from shoal.core.errors import PayloadError
from shoal.data.deal import Shares

FEWEST_STEPS = 3
"""Steps that a speed is measured over."""
GAIN = 1.05
"""A change must promise this much: shares that follow noise would restart the loaders' processes for nothing."""
UNIT = 1000
"""Of the largest share; shares are whole numbers so that all workers hold exactly the same ones."""
MOST_UNEQUAL = 64
"""The largest share by the smallest: a worker's word about its speed gives it no more than this."""


class ShareBalancer:
    """The shares of all workers as one of them knows them; the same on every worker after each synchronization."""

    def __init__(self, chosen: str, members: Sequence[str]) -> None:
        """`chosen`: `even`, `auto`, or a ratio such as `2:1:1` by slot; `members`: those the run begins with."""
        self.choose(chosen, dict(enumerate(members)))

    def choose(self, chosen: str, members: Mapping[int, str]) -> None:
        """Begin anew, as the plan says; `members` by slot."""
        self.automatic = chosen == "auto"
        self._ratio = tuple(map(int, chosen.split(":"))) if ":" in chosen else ()
        named = {member: slot for slot, member in members.items() if slot < len(self._ratio)}
        self.of_member: dict[str, int] = {member: self._ratio[slot] for member, slot in named.items()}
        self._samples, self._seconds, self._steps = 0, 0.0, 0

    def add_step(self, samples: int, seconds: float) -> None:
        """This worker was busy for `seconds` with a step of `samples`."""
        self._samples, self._seconds, self._steps = self._samples + samples, self._seconds + seconds, self._steps + 1

    def take_rate(self) -> float:
        """Samples per busy second since the last call; 0 while too little is known."""
        if not self.automatic or self._steps < FEWEST_STEPS or not self._samples or self._seconds <= 0:
            return 0.0
        rate = self._samples / self._seconds
        self._samples, self._seconds, self._steps = 0, 0.0, 0
        return rate

    def shares(self, members: Sequence[str]) -> Shares:
        """Of `members`, in their order; who is not known yet gets the mean of the others. Empty: all the same."""
        known = [self.of_member[member] for member in members if member in self.of_member]
        if not known:
            return ()
        mean = max(1, round(sum(known) / len(known)))
        shares = tuple(self.of_member.get(member, mean) for member in members)
        return shares if len(set(shares)) > 1 else ()

    def update(self, members: Sequence[str], slots: Sequence[int], rates: Sequence[float]) -> bool:
        """Take in what all workers said; returns whether the shares have changed. The same everywhere."""
        before = self.shares(members)
        if self._ratio:
            named = {m: self._ratio[slot] for m, slot in zip(members, slots, strict=True) if slot < len(self._ratio)}
            self.of_member = self.of_member | named
        elif self.automatic and all(rate > 0 for rate in rates):
            now = before or (1,) * len(members)
            if expected_gain(now, rates) >= GAIN:
                floor = max(rates) / MOST_UNEQUAL
                wanted = [max(1, round(UNIT * max(rate, floor) / max(rates))) for rate in rates]
                self.of_member = dict(zip(members, wanted, strict=True))
        return self.shares(members) != before


def expected_gain(shares: Sequence[int], rates: Sequence[float]) -> float:
    """How many times faster a step gets if shares follow `rates`: the slowest now, by all at the same time."""
    slowest = max(share / rate for share, rate in zip(shares, rates, strict=True))
    return slowest * sum(rates) / sum(shares)


def check_rate(rate: float) -> None:
    """PayloadError for what is no speed; a worker's word is checked before it is believed."""
    if not (math.isfinite(rate) and rate >= 0):
        raise PayloadError(f"{rate} samples a second; a speed is a finite number, 0 or more")
