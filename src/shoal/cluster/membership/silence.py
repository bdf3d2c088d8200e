"""Whose silence is loss: judged by the coordinator's own clock, and only while it may not be cut off itself.

A member that is not heard for `silence` seconds, or four of its steps, is out, if at least as many members are heard as
are missed. Otherwise the coordinator may be the one that is cut off while the others train on, and waits until their
leases are over.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.cluster.membership.bounds import step_seconds
from shoal.cluster.membership.messages import Beat, Plate
from shoal.cluster.membership.rules import Rules
from shoal.cluster.membership.view import View


@dataclass
class Seat:
    """What is known of one who is, or wants to be, a member."""

    heard: float
    beat: Beat | None = None
    plate: Plate = field(default_factory=Plate)
    waits: bool = False
    """Whether it takes over somebody's state before it enters."""
    behind: float | None = None
    """Since when it beats without entering the view it was told of."""
    missed: int = 0
    """How often in a row it did not stand before the step at which newcomers were to enter."""


class Silence:
    """Of all seats, as one clock tells it."""

    def __init__(self, rules: Rules, now: float) -> None:
        self.rules = rules
        self._looked = now
        self._deaf = -math.inf
        """When more members were missed than heard."""

    def given_up(self, seats: Mapping[str, Seat], view: View, now: float) -> dict[str, str]:
        """Members and why. Those in the majority may still train: they are not, before their lease is over."""
        self._excuse(seats, now)
        own = [s.beat for m, s in seats.items() if m in view and not s.plate.guest and s.beat is not None]
        usual = step_seconds(own)
        silent = {
            member: why
            for member, seat in seats.items()
            if (why := self._verdict(seat, now, usual if own and seat.plate.guest else None))
        }
        # guests cannot train on by themselves, so they have no vote
        voters = [member for member, seat in seats.items() if member in view and not seat.plate.guest]
        # by fewer beats than a verdict: of members that all fall silent at once, one is the first to be judged
        quiet = [member for member in voters if now - seats[member].heard > self.rules.quiet]
        missed = len({*quiet, *silent} & {*voters})
        if len(voters) - missed >= missed:
            # one that was cut off itself hears some again before others: those get time to be heard
            return silent if now - self._deaf > 2 * self.rules.silence else {}
        self._deaf = now
        over = self.rules.lease + self.rules.silence
        return {m: why for m, why in silent.items() if m not in voters or now - seats[m].heard > over}

    def _excuse(self, seats: Mapping[str, Seat], now: float) -> None:
        """Who was not heard while the coordinator itself was away may have spoken."""
        asleep, self._looked = now - self._looked, now
        if asleep > self.rules.asleep:
            for seat in seats.values():
                seat.heard += asleep

    def _verdict(self, seat: Seat, now: float, usual: float | None) -> str:
        """Why a member is to be given up; empty: it is not. `usual`: how long steps take, whatever it says itself."""
        period, idle = (seat.beat.period, seat.beat.idle) if seat.beat is not None else (0.0, 0.0)
        period = period if usual is None else usual
        unheard = now - seat.heard
        patience = self._patience(self.rules.silence, period)
        if unheard > patience - min(self.rules.margin, patience / 6):
            return f"silent for {unheard:.1f} s"
        if idle > self._patience(self.rules.stuck, period):
            return f"its training thread has not run for {idle:.1f} s"
        return ""

    def _patience(self, least: float, period: float) -> float:
        return min(self.rules.longest, max(least, self.rules.steps * period))
