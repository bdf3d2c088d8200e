"""Members that hear nothing of each other, or break the protocol, though the coordinator hears them all.

Training cannot go on with both, so one of them is given up. Who is believed:

    the run's own workers     at once; of several they doubt, whoever most doubt, and then the last of the view
    remote workers            of each other only: two that came with different keys; one alone, or one that a doubted
                              one doubts as well, may be the one that lies
    nobody                    of the run's own workers, where a remote one says it: that one can be spared itself

A doubt counts while it is repeated. Where nobody listens at a member's door any more, and the coordinator has not
heard it either for a few beats, it is gone.

Who takes the place of one that was no longer heard sits behind the same link, so it is let in only after a while,
longer every time: members must not come and go with every moment of a bad link.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass

from shoal.cluster.membership.messages import Doubt, Plate
from shoal.cluster.membership.view import View

LASTS = 1.5
"""Seconds after which a doubt that was not said again is over."""
PERSISTS = 1.0
"""Seconds it must last to count."""
BEATS = 1.0
"""Seconds without a beat after which a closed door means a loss."""
CLOSED = "nobody listens at its door"
HOLD, LONGEST_HOLD = 20.0, 640.0
"""Seconds before the machine of one that was no longer heard is let in again: doubled every time."""


@dataclass
class _Held:
    since: float
    said: Doubt
    last: float


Held = dict[tuple[str, str], _Held]


class Doubts:
    """Who doubts whom. `owner` tells the key a member came with: one key is one witness."""

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

    def hear(self, doubt: Doubt, now: float) -> None:
        key = (doubt.member, doubt.of)
        since = self._held[key].since if key in self._held and now - self._held[key].last <= LASTS else now
        self._held[key] = _Held(since, doubt, now)

    def clear(self) -> None:
        """The view has changed."""
        self._held.clear()

    def verdict(
        self, view: View, heard: Mapping[str, float], now: float, remote: Container[str] = ()
    ) -> tuple[str, str] | None:
        """Whom to give up, and why. `heard`: when the coordinator heard each living member last."""
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
        """A closed door means nothing while beats are heard; a remote worker's word for it never does."""
        return now - held.since >= PERSISTS and (remote or not held.said.closed)

    def _outvoted(self, lasting: Held, view: View, remote: Container[str]) -> tuple[str, str] | None:
        """Whom one of the run's own workers doubts, or two remote ones of different keys."""
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

    def _quarrel(self, lasting: Held, view: View) -> tuple[str, str] | None:
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


def address(plate: Plate) -> str:
    """Of the machine, without the port."""
    return plate.address.rpartition(":")[0]
