"""Failure detection by the coordinator's own clock: the timing rules, and whose silence counts as a loss.

What members say about each other is judged in `suspicions`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.membership.bounds import step_seconds
from shoal.membership.protocol import Heartbeat, MemberInfo
from shoal.membership.view import MembershipView


@dataclass(frozen=True)
class MembershipRules:
    """How many members begin, and when silence counts as a loss."""

    members: int = 1
    """Members of the first view of a run, begun or resumed; later ones enter between two steps."""
    prepares: bool = False
    """Whether the launcher starts what a plan needs before a view may have it."""
    remote: int = 0
    """Workers of other machines in the first view; the launcher lowers the number if a machine cannot start."""
    gather: float = 120.0
    """Seconds the first view waits for its members; one that dies before is not waited for."""
    silence: float = 3.0
    """Seconds of silence after which a member is lost, and its launcher knows it."""
    steps: float = 4.0
    """The same in its own steps; the longer of the two counts."""
    margin: float = 0.3
    """Judge this many seconds early: ticks, the log and the launcher's polling take the rest."""
    quiet: float = 1.0
    """If most members have been silent for this many seconds, the coordinator itself may be cut off."""
    stuck: float = 60.0
    """Seconds after which a member is lost whose agent beats but whose training thread does not run (a deadlock)."""
    longest: float = 600.0
    """The most seconds that any of these limits may reach by counting steps."""
    lease: float = 120.0
    """Seconds a member may train on without an answer from the coordinator."""
    ahead: float = 1.0
    """Seconds of training between proposing a newcomer and the step at which it enters."""
    repeat: float = 0.5
    """Seconds after which an unanswered message is sent again."""
    late: float = 1.0
    """Seconds all members stand still for the answer of a newcomer; then they go on without it."""
    later: float = 2.0
    """Seconds until such a newcomer is asked again, doubled every time, up to a minute."""
    answer: float = 10.0
    """Seconds a remote worker has to answer a proposal, or to enter a view; its agent needs milliseconds."""
    asleep: float = 1.0
    """Seconds between two ticks that show that the coordinator itself was not running."""


@dataclass
class MemberStatus:
    """What is known of a member or newcomer."""

    heard: float
    beat: Heartbeat | None = None
    info: MemberInfo = field(default_factory=MemberInfo)
    waits: bool = False
    """Whether it is taking over a member's state before it enters."""
    behind: float | None = None
    """Since when it has been beating without entering the view it was told of."""
    missed: int = 0
    """How often in a row it had already begun the step at which newcomers were to enter."""
    put_off: int = 0
    """How often it was too slow to answer while all members stood still for it."""
    not_before: float = 0.0
    """When it may be asked again after that."""


class FailureDetector:
    """Judges all members by the coordinator's clock."""

    def __init__(self, rules: MembershipRules, now: float) -> None:
        self.rules = rules
        self._looked = now
        self._deaf = -math.inf
        """When more members were last silent than heard."""

    def given_up(self, statuses: Mapping[str, MemberStatus], view: MembershipView, now: float) -> dict[str, str]:
        """Return the members to give up, and why.

        While most members are silent, they may be training without this coordinator, so they are given up only after
        their leases have ended: two halves of a run must never train at the same time.
        """
        self._excuse(statuses, now)
        own = [s.beat for m, s in statuses.items() if m in view and not s.info.remote and s.beat is not None]
        usual = step_seconds(own)
        silent = {
            member: why
            for member, status in statuses.items()
            if (why := self._verdict(status, now, usual if own and status.info.remote else None))
        }
        # Remote workers alone never go on, so they are no majority that could train without the coordinator.
        voters = [member for member, status in statuses.items() if member in view and not status.info.remote]
        # A shorter silence than that of a verdict: of members that fall silent together, one is always judged first.
        quiet = [member for member in voters if now - statuses[member].heard > self.rules.quiet]
        missed = len({*quiet, *silent} & {*voters})
        if len(voters) - missed >= missed:
            # A coordinator that was cut off hears some members again before others, so the others get time too.
            return silent if now - self._deaf > 2 * self.rules.silence else {}
        self._deaf = now
        over = self.rules.lease + self.rules.silence
        return {m: why for m, why in silent.items() if m not in voters or now - statuses[m].heard > over}

    def _excuse(self, statuses: Mapping[str, MemberStatus], now: float) -> None:
        """Forgive silence from while this process did not run: beats may have arrived unread."""
        asleep, self._looked = now - self._looked, now
        # Applied to all alike, so the order of their silences stays.
        if asleep > self.rules.asleep:
            for status in statuses.values():
                status.heard += asleep

    def _verdict(self, status: MemberStatus, now: float, usual: float | None) -> str:
        """Return why a member is given up, or "". `usual`: seconds of a step, instead of what the member claims."""
        period, idle = (status.beat.period, status.beat.idle) if status.beat is not None else (0.0, 0.0)
        period = period if usual is None else usual  # a remote worker could claim steps of an hour
        unheard = now - status.heard
        patience = self._patience(self.rules.silence, period)
        if unheard > patience - min(self.rules.margin, patience / 6):
            # At most a sixth of the patience, so that rules with a short silence keep most of theirs.
            return f"silent for {unheard:.1f} s"
        # A polling wait uses CPU, so only a thread that is blocked for good stays idle this long.
        if idle > self._patience(self.rules.stuck, period):
            return f"its training thread has not run for {idle:.1f} s"
        return ""

    def _patience(self, least: float, period: float) -> float:
        return min(self.rules.longest, max(least, self.rules.steps * period))
