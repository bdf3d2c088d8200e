"""Failure detection: timing rules, whose silence counts as loss, and which suspicions between members are believed."""

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

from shoal.membership.bounds import step_seconds
from shoal.membership.protocol import Heartbeat, MemberInfo, SuspectMember
from shoal.membership.view import MembershipView


@dataclass(frozen=True)
class MembershipRules:
    """How many begin, and when silence is loss."""

    members: int = 1
    """Members of the first view of a run, begun or resumed; later ones enter between two steps."""
    remote: int = 0
    """So many workers of other machines are in it too; the launcher lowers the number if a machine cannot start."""
    gather: float = 120.0
    """Seconds the first view waits for them; those that die before it count as having come."""
    silence: float = 3.0
    """Seconds after which a member that was frozen is out, and its launcher knows."""
    steps: float = 4.0
    """Or this many of its steps, if that is longer."""
    margin: float = 0.3
    """Seconds of these for ticks, the log and the launcher's own look: so much earlier without a beat is too long."""
    quiet: float = 1.0
    """Seconds without a beat, of most members, after which it may be the coordinator who hears nobody."""
    stuck: float = 60.0
    """Seconds after which a member is out that beats, but whose training thread does not run (a deadlock)."""
    longest: float = 600.0
    """But never more than this."""
    lease: float = 120.0
    """Seconds a member trains on unheard."""
    ahead: float = 1.0
    """Seconds of training between the word that somebody enters and the step at which it does."""
    repeat: float = 0.5
    """Seconds after which what was not answered is said again."""
    answer: float = 10.0
    """Seconds a remote worker that beats has to answer a proposal or to enter a view; an agent needs milliseconds."""
    asleep: float = 1.0
    """Seconds between two ticks after which the coordinator was not running itself."""


@dataclass
class MemberStatus:
    """What is known of one who is, or wants to be, a member."""

    heard: float
    beat: Heartbeat | None = None
    info: MemberInfo = field(default_factory=MemberInfo)
    waits: bool = False
    """Whether it takes over somebody's state before it enters."""
    behind: float | None = None
    """Since when it beats without entering the view it was told of."""
    missed: int = 0
    """How often in a row it did not stand before the step at which newcomers were to enter."""


class FailureDetector:
    """Of all members, as one clock tells it."""

    def __init__(self, rules: MembershipRules, now: float) -> None:
        self.rules = rules
        self._looked = now
        self._deaf = -math.inf
        """When more members were missed than heard."""

    def given_up(self, statuses: Mapping[str, MemberStatus], view: MembershipView, now: float) -> dict[str, str]:
        """Members and why. Those in the majority may still train: they are not, before their lease is over."""
        self._excuse(statuses, now)
        own = [s.beat for m, s in statuses.items() if m in view and not s.info.remote and s.beat is not None]
        usual = step_seconds(own)
        silent = {
            member: why
            for member, status in statuses.items()
            if (why := self._verdict(status, now, usual if own and status.info.remote else None))
        }
        # remote workers cannot train on by themselves, so they have no vote
        voters = [member for member, status in statuses.items() if member in view and not status.info.remote]
        # by fewer beats than a verdict: of members that all fall silent at once, one is the first to be judged
        quiet = [member for member in voters if now - statuses[member].heard > self.rules.quiet]
        missed = len({*quiet, *silent} & {*voters})
        if len(voters) - missed >= missed:
            # one that was cut off itself hears some again before others: those get time to be heard
            return silent if now - self._deaf > 2 * self.rules.silence else {}
        self._deaf = now
        over = self.rules.lease + self.rules.silence
        return {m: why for m, why in silent.items() if m not in voters or now - statuses[m].heard > over}

    def _excuse(self, statuses: Mapping[str, MemberStatus], now: float) -> None:
        """Forgive silence from before now: the coordinator itself was away, and members may have sent."""
        asleep, self._looked = now - self._looked, now
        if asleep > self.rules.asleep:
            for status in statuses.values():
                status.heard += asleep

    def _verdict(self, status: MemberStatus, now: float, usual: float | None) -> str:
        """Why a member is to be given up; empty: it is not. `usual`: how long steps take, whatever it says itself."""
        period, idle = (status.beat.period, status.beat.idle) if status.beat is not None else (0.0, 0.0)
        period = period if usual is None else usual
        unheard = now - status.heard
        patience = self._patience(self.rules.silence, period)
        if unheard > patience - min(self.rules.margin, patience / 6):
            return f"silent for {unheard:.1f} s"
        if idle > self._patience(self.rules.stuck, period):
            return f"its training thread has not run for {idle:.1f} s"
        return ""

    def _patience(self, least: float, period: float) -> float:
        return min(self.rules.longest, max(least, self.rules.steps * period))


LASTS = 1.5
"""Seconds after which a doubt that was not said again is over."""
PERSISTS = 1.0
"""Seconds it must last to count."""
BEATS = 1.0
"""Seconds without a beat after which a closed endpoint means a loss."""
CLOSED = "nobody listens at its endpoint"
HOLD, LONGEST_HOLD = 20.0, 640.0
"""Seconds before the machine of a silent member may join again: doubled every time."""


@dataclass
class _Held:
    since: float
    said: SuspectMember
    last: float


Held = dict[tuple[str, str], _Held]


class SuspicionTable:
    """Which member suspects which. `owner` gives the key a member came with: one key is one witness."""

    def __init__(self, owner: Callable[[str], str] = str) -> None:
        self._owner = owner
        self._held: Held = {}
        self._kept_out: dict[str, tuple[float, float]] = {}
        """By machine: until when, and for how long."""
        self._costs: dict[str, int] = {}
        """By key of a remote worker: members that were given up on its word against theirs."""

    def given_up(self, machine: str, now: float) -> None:
        """One that was no longer heard was there."""
        _, before = self._kept_out.get(machine, (0.0, HOLD / 2))
        lasts = min(2 * before, LONGEST_HOLD)
        self._kept_out[machine] = (now + lasts, lasts)

    def kept_out(self, machine: str, now: float) -> bool:
        return now < self._kept_out.get(machine, (0.0, 0.0))[0]

    def hear(self, doubt: SuspectMember, now: float) -> None:
        key = (doubt.member, doubt.of)
        since = self._held[key].since if key in self._held and now - self._held[key].last <= LASTS else now
        self._held[key] = _Held(since, doubt, now)

    def clear(self) -> None:
        """The view has changed."""
        self._held.clear()

    def verdict(
        self, view: MembershipView, heard: Mapping[str, float], now: float, remote: Container[str] = ()
    ) -> tuple[str, str] | None:
        """Members to give up, and why. `heard`: when the coordinator last heard each living member."""
        living = {
            key: held
            for key, held in self._held.items()
            if now - held.last <= LASTS and all(member in view and member in heard for member in key)
        }
        for (by, of), held in living.items():
            if by not in remote and held.said.closed and now - heard[of] > BEATS:
                return of, f"{CLOSED}, says {by}"
        accused = [(by, of) for (by, of), held in living.items() if by not in remote and held.said.reason]
        if accused:
            by, of = accused[0]
            return _blamed(living, by, of, remote)
        lasting = {key: held for key, held in living.items() if self._lasts(held, now, key[0] in remote)}
        return self._outvoted(lasting, view, remote) or self._quarrel(lasting, view)

    def _lasts(self, held: _Held, now: float, remote: bool) -> bool:
        """A closed endpoint means nothing while beats are heard; a remote worker's word for it never does."""
        return now - held.since >= PERSISTS and (remote or not held.said.closed)

    def _outvoted(self, lasting: Held, view: MembershipView, remote: Container[str]) -> tuple[str, str] | None:
        """Members suspected by one of the run's own workers, or by two remote ones with different keys."""
        witnesses: dict[str, set[str]] = {}
        certain = {of for by, of in lasting if by not in remote}
        for by, of in lasting:
            if self._owner(by) != self._owner(of):
                witnesses.setdefault(of, set()).add(self._owner(by) if by in remote else by)
        certain |= {of for of, keys in witnesses.items() if len(keys) > 1}
        if not certain:
            return None
        victim = max(certain, key=lambda member: (len(witnesses.get(member, ())), view.rank(member)))
        return victim, _why(lasting, victim)

    def _quarrel(self, lasting: Held, view: MembershipView) -> tuple[str, str] | None:
        """Of two remote workers: the one whose word alone it is, or, if each doubts the other, one of both.

        A link may be broken, or one of them lies. Whose word has cost others their membership before goes first, so
        that a liar pays for the second one at the latest.
        """
        for by, of in lasting:
            victim, other = by, of
            if (of, by) in lasting:
                pair = sorted((by, of), key=lambda m: (self._costs.get(self._owner(m), 0), view.rank(m)))
                other, victim = pair
                self._costs[self._owner(other)] = self._costs.get(self._owner(other), 0) + 1
                return victim, f"no longer heard by {other}"
            return victim, f"it alone does not hear {other}"
        return None


def _blamed(living: Held, by: str, of: str, remote: Container[str]) -> tuple[str, str]:
    """`by` waits for `of`, which may itself wait for another remote worker: the last of such a chain is to blame."""
    seen, at = {of}, of
    while True:
        onward = [
            next_ for (waits, next_), held in living.items() if waits == at and held.said.late and next_ in remote
        ]
        if not living[(by, of)].said.late or not onward:
            break
        if onward[0] in seen:  # they blame each other, so that nobody can tell
            at = of
            break
        at = onward[0]
        seen.add(at)
    reason = next(held.said.reason for (_, who), held in living.items() if who == at and held.said.reason)
    return at, reason


def _why(lasting: Held, victim: str) -> str:
    reasons = [held.said.reason for (_, of), held in lasting.items() if of == victim and held.said.reason]
    by = ", ".join(sorted(by for (by, of) in lasting if of == victim))
    return reasons[0] if reasons else f"no longer heard by {by}"


def address(info: MemberInfo) -> str:
    """Of the machine, without the port."""
    return info.address.rpartition(":")[0]
