"""Suspicions between members: which ones the coordinator believes, and whom it then drops.

A worker of the run's own is believed at once. A remote worker may lie, so two of them with different keys must agree.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

from shoal.membership.protocol import SuspectMember
from shoal.membership.view import MembershipView

LASTS = 1.5
"""A suspicion expires unless it is repeated within this many seconds."""
PERSISTS = 1.0
"""Seconds a suspicion must last to count: a link that was just broken is made again sooner."""
BEATS = 1.0
"""Seconds without a beat after which a closed endpoint means that the process is gone."""
CLOSED = "nobody listens at its endpoint"
HOLD, LONGEST_HOLD = 20.0, 640.0
"""Seconds before the machine of a silent member may join again, and the most; doubled every time."""


@dataclass
class _HeldSuspicion:
    since: float
    said: SuspectMember
    last: float


Held = dict[tuple[str, str], _HeldSuspicion]


class SuspicionTable:
    """Which member suspects which. `owner` gives a member's key: all members with one key are one witness."""

    def __init__(self, owner: Callable[[str], str] = str) -> None:
        self._owner = owner
        self._held: Held = {}
        self._kept_out: dict[str, tuple[float, float]] = {}
        """By machine: until when it is kept out, and for how many seconds."""
        self._costs: dict[str, int] = {}
        """By key of a remote worker: how many members were dropped because of its word alone."""

    def __len__(self) -> int:
        return len(self._held)

    def given_up(self, machine: str, now: float) -> None:
        """Keep a machine out for a while, because a member on it was no longer heard."""
        _, before = self._kept_out.get(machine, (0.0, HOLD / 2))
        lasts = min(2 * before, LONGEST_HOLD)
        self._kept_out[machine] = (now + lasts, lasts)

    def kept_out(self, machine: str, now: float) -> bool:
        return now < self._kept_out.get(machine, (0.0, 0.0))[0]

    def hear(self, doubt: SuspectMember, now: float) -> None:
        key = (doubt.member, doubt.of)
        # a suspicion that was not repeated in time is over: this one begins anew
        since = self._held[key].since if key in self._held and now - self._held[key].last <= LASTS else now
        self._held[key] = _HeldSuspicion(since, doubt, now)

    def clear(self) -> None:
        """Forget all suspicions, because the view has changed."""
        self._held.clear()

    def verdict(
        self, view: MembershipView, heard: Mapping[str, float], now: float, remote: Container[str] = ()
    ) -> tuple[str, str] | None:
        """Return the member to give up, and why. `heard`: when the coordinator last heard each living member."""
        living = {
            key: held
            for key, held in self._held.items()
            if now - held.last <= LASTS and all(member in view and member in heard for member in key)
        }
        for (by, of), held in living.items():
            # beats must have stopped, too: a link that refuses connections is not yet a process that has ended
            if by not in remote and held.said.closed and now - heard[of] > BEATS:
                return of, f"{CLOSED}, says {by}"
        accused = [(by, of) for (by, of), held in living.items() if by not in remote and held.said.reason]
        if accused:
            by, of = accused[0]
            return _blamed(living, by, of, remote)
        lasting = {key: held for key, held in living.items() if self._lasts(held, now, key[0] in remote)}
        return self._outvoted(lasting, view, remote) or self._quarrel(lasting, view)

    def _lasts(self, held: _HeldSuspicion, now: float, remote: bool) -> bool:
        """Return whether a suspicion is old enough; closed endpoints are judged by beats instead of time."""
        return now - held.since >= PERSISTS and (remote or not held.said.closed)

    def _outvoted(self, lasting: Held, view: MembershipView, remote: Container[str]) -> tuple[str, str] | None:
        """Return the member suspected by one of the run's own workers, or by two remote ones with different keys."""
        witnesses: dict[str, set[str]] = {}
        certain = {of for by, of in lasting if by not in remote}
        for by, of in lasting:
            if self._owner(by) != self._owner(of):  # one key is one witness, and none against itself
                witnesses.setdefault(of, set()).add(self._owner(by) if by in remote else by)
        certain |= {of for of, keys in witnesses.items() if len(keys) > 1}
        if not certain:
            return None
        # The one with most witnesses; among equals the last in rank, so that rank 0 stays.
        victim = max(certain, key=lambda member: (len(witnesses.get(member, ())), view.rank(member)))
        return victim, _why(lasting, victim)

    def _quarrel(self, lasting: Held, view: MembershipView) -> tuple[str, str] | None:
        """Choose between two remote workers: the only one to complain goes; if both do, one of them.

        Their link may be broken, or one of them lies. The worker whose word has already cost others their membership
        goes first, so a liar can evict at most one honest worker.
        """
        for by, of in lasting:
            victim, other = by, of
            # Both complain, and there is no third witness: the one whose word has cost others more is believed less.
            if (of, by) in lasting:
                pair = sorted((by, of), key=lambda m: (self._costs.get(self._owner(m), 0), view.rank(m)))
                other, victim = pair
                self._costs[self._owner(other)] = self._costs.get(self._owner(other), 0) + 1
                return victim, f"no longer heard by {other}"
            return victim, f"it alone does not hear {other}"
        return None


def _blamed(living: Held, by: str, of: str, remote: Container[str]) -> tuple[str, str]:
    """Return who is to blame: `of`, or, if `of` itself waits for another remote worker, the last of that chain."""
    seen, at = {of}, of
    while True:
        # A worker that keeps others waiting may only wait itself, for the one that really holds all up.
        onward = [
            next_ for (waits, next_), held in living.items() if waits == at and held.said.late and next_ in remote
        ]
        if not living[(by, of)].said.late or not onward:
            break
        if onward[0] in seen:  # they blame each other in a circle, so the first one named goes
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
