"""The coordinator's book of leases: which worker trains which samples of a pass, while no round has counted them.

    worker                                       coordinator
      │ LeaseRequest(round, pool, number)            │
      ├─────────────────────────────────────────────▶│ the lowest positions of the pool that nobody has
      │◀─────────────────────────────────────────────┤ SamplesLeased(number, ahead, ranges)
      │ … trains; all close the round …              │
      │ LeaseRequest(next round, what is left, …)    │ what the round has not counted is in the pool again

A round has `steps` batches for every member. A lease beyond that is for the next round, so whoever gets one closes the
round before it trains on. A fast worker asks more often, and gets more.

Nothing of this is in the log. All members know what is left of a pass when a round ends, and say so; a lease that no
round has counted is known to the worker that holds it, and void if that is lost. So a coordinator that is started
again waits until all have said what they hold, and gives on from the highest position that anybody was given.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.membership.protocol import HeldLease, LeaseRequest, Range, SamplesLeased

AHEAD_UNTIL = 4
"""Leases ahead of need are given while so many batches for each member remain of a round: at its end a slow worker
would hold what others wait for."""
MOST_LOADERS = 64

Answers = list[tuple[str, SamplesLeased]]


@dataclass
class _LeasedPass:
    """One pass over one loader."""

    key: tuple[int, int, int]
    met: dict[str, LeaseRequest] = field(default_factory=dict)
    """What members have said, until all have."""
    begun: bool = False
    round: int = 0
    pool: list[Range] = field(default_factory=list)
    given: int = 0
    """Leases since the round began, and those for it from before."""
    held: dict[str, list[HeldLease]] = field(default_factory=dict)
    answers: dict[str, SamplesLeased] = field(default_factory=dict)
    """The last of each member: it may get lost, and is asked for again."""


class LeaseBook:
    """Of one coordinator; pure. `is_remote`: whether a member's word about the pool is not taken."""

    def __init__(self, is_remote: Callable[[str], bool] = lambda member: False) -> None:
        self._passes: dict[int, _LeasedPass] = {}
        self._is_remote = is_remote

    def hear(self, request: LeaseRequest, members: Sequence[str]) -> Answers:
        """Take a request in, while these are the members; what to answer, to whom."""
        found = self._find(request)
        if request.member not in members or found is None:
            return []
        if not found.begun:
            found.met[request.member] = request
            return self._begin(found, members)
        if request.round > found.round and not self._is_remote(request.member):
            self._advance(found, request, members)
        return self._answer(found, request, members)

    def _find(self, request: LeaseRequest) -> _LeasedPass | None:
        loader = request.key[0]
        found = self._passes.get(loader)
        if found is None or found.key < request.key:
            if self._is_remote(request.member) and found is not None:
                return None  # one of the run's own workers comes to that pass too
            if found is None and len(self._passes) >= MOST_LOADERS:
                del self._passes[min(self._passes)]
            found = self._passes[loader] = _LeasedPass(request.key)
        return found if found.key == request.key else None

    def _begin(self, found: _LeasedPass, members: Sequence[str]) -> Answers:
        """Once all members have said what they hold, and one of the run's own what is left."""
        said = [found.met[member] for member in members if member in found.met]
        own = [request for request in said if not self._is_remote(request.member)]
        if len(said) < len(members) or not own:
            return []
        newest = max(own, key=lambda request: request.round)
        reached = max(request.reached for request in said)
        found.begun, found.round = True, newest.round
        found.held = {request.member: list(request.held) for request in said}
        found.pool = subtract(newest.pool, [(0, reached)] if reached else [])
        found.given = _given(found.held, _quota(newest, members))
        waiting, found.met = found.met, {}
        return [answer for request in waiting.values() for answer in self._answer(found, request, members)]

    def _advance(self, found: _LeasedPass, request: LeaseRequest, members: Sequence[str]) -> None:
        """All have closed a round: what it did not count is in the pool again, but for leases of later rounds."""
        kept = {
            member: [HeldLease(ahead=lease.ahead - 1, ranges=lease.ranges) for lease in leases if lease.ahead]
            for member, leases in found.held.items()
            if member in members
        }
        found.round, found.held = request.round, kept
        found.given = _given(kept, _quota(request, members))
        out = [one for leases in kept.values() for lease in leases for one in lease.ranges]
        found.pool = subtract(request.pool, out)

    def _answer(self, found: _LeasedPass, request: LeaseRequest, members: Sequence[str]) -> Answers:
        answered = found.answers.get(request.member)
        if not request.wants or request.round != found.round:
            again = request.wants and answered is not None and answered.number == request.number
            return [(request.member, answered)] if again and answered is not None else []
        if answered is None or answered.number != request.number:
            quota = _quota(request, members)
            if not request.waits and found.given + AHEAD_UNTIL * len(members) > quota:
                return []
            answered = self._lease(found, request, quota)
        return [(request.member, answered)]

    def _lease(self, found: _LeasedPass, request: LeaseRequest, quota: int) -> SamplesLeased:
        ahead, ranges = found.given // quota, tuple[Range, ...]()
        if count(found.pool) >= request.least:
            taken, found.pool = take(found.pool, request.batch)
            ranges = tuple(taken)
            found.held.setdefault(request.member, []).append(HeldLease(ahead=ahead, ranges=ranges))
            found.given += 1
        leased = SamplesLeased(key=request.key, round=found.round, number=request.number, ahead=ahead, ranges=ranges)
        found.answers[request.member] = leased
        return leased


def _quota(request: LeaseRequest, members: Sequence[str]) -> int:
    """Batches of a round."""
    return request.steps * len(members)


def _given(held: Mapping[str, Sequence[HeldLease]], quota: int) -> int:
    """Leases of a round so far. No worker may get one for an earlier round than those it holds."""
    leases = [lease for found in held.values() for lease in found]
    return max(len(leases), quota * max((lease.ahead for lease in leases), default=0))


def count(pool: Iterable[Range]) -> int:
    """Positions in ranges."""
    return sum(end - begin for begin, end in pool)


def take(pool: Sequence[Range], number: int) -> tuple[list[Range], list[Range]]:
    """The lowest `number` positions, and the rest."""
    taken, rest = list[Range](), list[Range]()
    for begin, end in sorted(pool):
        cut = min(end, begin + number)
        number -= cut - begin
        taken += [(begin, cut)] * (cut > begin)
        rest += [(cut, end)] * (end > cut)
    return taken, rest


def subtract(pool: Iterable[Range], out: Iterable[Range]) -> list[Range]:
    """The positions of `pool` that are not in `out`."""
    kept = list(pool)
    for begin, end in out:
        kept = [part for a, b in kept for part in ((a, min(b, begin)), (max(a, end), b)) if part[0] < part[1]]
    return kept
