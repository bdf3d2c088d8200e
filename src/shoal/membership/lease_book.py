"""The coordinator's lease book: which worker trains which samples of a pass, until a round has counted them.

    worker                                       coordinator
      │ LeaseRequest(round, pool, number)            │
      ├─────────────────────────────────────────────▶│ the lowest positions of the pool that nobody has
      │◀─────────────────────────────────────────────┤ SamplesLeased(number, ahead, ranges)
      │ … trains; all close the round …              │
      │ LeaseRequest(next round, what is left, …)    │ what the round has not counted is in the pool again

A round has `steps` batches for every member. A lease beyond that is for the next round, so the worker that gets it
closes the current round first. A fast worker asks more often, and gets more. Under `fastest` each
member has `steps` batches of its own, and the first that has trained them says so (`closes`): all others are told to
stop (`LeasesClosing`). What they have not begun is in the pool again, whose lowest positions are given first.

The log does not hold leases. When a round ends all members know what is left of the pass, and report it; a lease that
no round has counted is known to its holder, and void if that worker is lost. So a restarted coordinator waits until
all members have reported what they hold, and continues behind the highest position that any of them was given.

A remote worker leases samples like all others, but decides nothing for them: it begins no pass, sets no terms, and what
it claims to hold counts only after a restart, within bounds. One that takes samples and does not train them is evicted.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.membership.protocol import HeldLease, LeaseRequest, LeasesClosing, Range, SamplesLeased

AHEAD_UNTIL = 4
"""Workers may lease ahead while this many batches per member remain of a round. Near its end they may not, because a
slow worker would hold samples that the others wait for."""
MOST_LOADERS = 64
MOST_AHEAD = 64
"""Leases for later rounds that a remote worker may hold: more than a loader reads ahead."""
MOST_IDLE = 3
"""Rounds in a row in which a remote worker may leave most of what it was given untrained."""

Answers = list[tuple[str, SamplesLeased | LeasesClosing]]


@dataclass
class _LeasedPass:
    """One pass over one loader."""

    key: tuple[int, int, int]
    terms: tuple[int, int, int, bool]
    """Batch, least, steps and fastest, as reported by the run's own workers."""
    restarted: bool
    """Whether workers may hold leases of the pass that this book does not know."""
    met: dict[str, LeaseRequest] = field(default_factory=dict)
    """The reports of members, until all have reported."""
    begun: bool = False
    round: int = 0
    pool: list[Range] = field(default_factory=list)
    given: dict[str, int] = field(default_factory=dict)
    """Leases for the current round, including those given before it began: of all under "", or of each member."""
    closing: bool = False
    """Whether a member has come to the end of the round, so that no other may begin another batch of it."""
    held: dict[str, list[HeldLease]] = field(default_factory=dict)
    answers: dict[str, SamplesLeased] = field(default_factory=dict)
    """The last answer to each member, to repeat it if it got lost."""
    idle: Counter[str] = field(default_factory=Counter)
    """Rounds in a row in which a remote member trained less than half of what it held."""
    awaited: float | None = None
    """Since when all others wait for the reports of remote members."""


class LeaseBook:
    """The leases of one run, without clocks or sockets. What a remote member says about the pool is not believed."""

    def __init__(self, is_remote: Callable[[str], bool] = lambda member: False, restarted: bool = True) -> None:
        """`restarted`: an earlier coordinator of this run may have given leases."""
        self._passes: dict[int, _LeasedPass] = {}
        self._is_remote, self._restarted = is_remote, restarted

    def objection(self, request: LeaseRequest, members: Sequence[str]) -> str:
        """Return why no honest remote worker sends this request, or ""."""
        found = self._passes.get(request.key[0])
        if found is None or found.key != request.key or not self._is_remote(request.member):
            return ""
        if _terms(request) != found.terms:
            return f"it leases by the terms {_terms(request)}, and the run's own workers by {found.terms}"
        if found.idle[request.member] >= MOST_IDLE:
            return f"in {MOST_IDLE} rounds in a row it trained less than half of the samples it was given"
        ahead = [lease.ahead for lease in request.held if lease.ahead]
        most = request.batch * (_quota(request, members) + MOST_AHEAD)
        held = sum(count(lease.ranges) for lease in request.held)
        if found.restarted and (max(ahead, default=0) > MOST_AHEAD or len(ahead) > MOST_AHEAD or held > most):
            return f"it says that it holds {held} samples, up to {max(ahead, default=0)} rounds ahead"
        return ""

    def overdue(self, members: Sequence[str], seconds: float, now: float) -> dict[str, str]:
        """Return the remote workers that keep all others waiting for their report, and why they must go."""
        late: dict[str, str] = {}
        for found in self._passes.values():
            silent = [member for member in members if member not in found.met and self._is_remote(member)]
            waits = not found.begun and all(member in found.met for member in members if not self._is_remote(member))
            found.awaited = (now if found.awaited is None else found.awaited) if waits else None
            if found.awaited is not None and now - found.awaited > seconds:
                late |= dict.fromkeys(silent, f"it did not say within {seconds:.0f} s which samples it holds")
        return late

    def hear(self, request: LeaseRequest, members: Sequence[str]) -> Answers:
        """Take in a request, and return the answers to send. `members`: the living members of the view."""
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
            if self._is_remote(request.member):
                return None  # else a lie would end the pass; one of the run's own workers opens the next one
            if found is None and len(self._passes) >= MOST_LOADERS:
                del self._passes[min(self._passes)]  # any number of loaders in turn, in bounded memory
            restarted = self._restarted and found is None
            found = self._passes[loader] = _LeasedPass(request.key, _terms(request), restarted)
        return found if found.key == request.key else None

    def _begin(self, found: _LeasedPass, members: Sequence[str]) -> Answers:
        """Start leasing once all members have reported what they hold; in a new pass remote ones hold nothing."""
        asked = [member for member in members if found.restarted or not self._is_remote(member)]
        said = [found.met[member] for member in asked if member in found.met]
        own = [request for request in said if not self._is_remote(request.member)]
        if len(said) < len(asked) or not own:
            return []
        newest = max(own, key=lambda request: request.round)
        reached = max(request.reached for request in said)
        found.begun, found.round = True, newest.round
        found.held = {request.member: list(request.held) for request in said}
        # the lowest positions are given first: whatever a lost worker holds lies below the highest that was given
        found.pool = subtract(newest.pool, [(0, reached)] if reached else [])
        found.given = _given(found.held, newest, members)
        # Requests that came while reports were missing get their answers now.
        waiting, found.met = found.met, {}
        return [answer for request in waiting.values() for answer in self._answer(found, request, members)]

    def _advance(self, found: _LeasedPass, request: LeaseRequest, members: Sequence[str]) -> None:
        """Enter the next round: what the last one did not count returns to the pool, except leases for later rounds."""
        kept = {
            member: [HeldLease(ahead=lease.ahead - 1, ranges=lease.ranges) for lease in leases if lease.ahead]
            for member, leases in found.held.items()
            if member in members
        }
        self._judge(found, request)
        found.round, found.held, found.closing = request.round, kept, False
        found.given = _given(kept, request, members)
        # a worker that stopped early may not have heard of a lease that is in the pool again: it gets another one
        found.answers = {member: answer for member, answer in found.answers.items() if answer.ahead}
        out = [one for leases in kept.values() for lease in leases for one in lease.ranges]
        found.pool = subtract(request.pool, out)

    def _judge(self, found: _LeasedPass, request: LeaseRequest) -> None:
        """Count the rounds in which a remote worker left most of its samples untrained, or all of them where the
        fastest may end a round; the request's pool is what is left."""
        for member in filter(self._is_remote, found.held):
            ranges = [one for lease in found.held[member] if not lease.ahead for one in lease.ranges]
            trained = count(subtract(ranges, request.pool))
            most = 0 if request.fastest else count(ranges) / 2
            found.idle[member] = found.idle[member] + 1 if ranges and trained <= most else 0

    def _answer(self, found: _LeasedPass, request: LeaseRequest, members: Sequence[str]) -> Answers:
        if self._may_close(found, request, members):
            found.closing = True
            said = LeasesClosing(key=found.key, round=found.round)
            return [(member, said) for member in members if member != request.member]
        answers = self._answer_wish(found, request, members)
        if found.closing and not request.closes:  # again: messages get lost
            answers.append((request.member, LeasesClosing(key=found.key, round=found.round)))
        return answers

    def _may_close(self, found: _LeasedPass, request: LeaseRequest, members: Sequence[str]) -> bool:
        """Whether this ends the round for all; a remote worker must have been given its own batches of it first."""
        if not (request.fastest and request.closes and request.round == found.round) or found.closing:
            return False
        through = found.given.get(request.member, 0) >= _quota(request, members) or count(found.pool) < request.least
        return through or not self._is_remote(request.member)

    def _answer_wish(self, found: _LeasedPass, request: LeaseRequest, members: Sequence[str]) -> Answers:
        answered = found.answers.get(request.member)
        if not request.wants or request.round != found.round:
            again = request.wants and answered is not None and answered.number == request.number
            return [(request.member, answered)] if again and answered is not None else []
        if answered is None or answered.number != request.number:
            quota, least = _quota(request, members), 1 if request.fastest else AHEAD_UNTIL * len(members)
            if not request.waits and (found.closing or found.given.get(_whose(request), 0) + least > quota):
                return []
            answered = self._lease(found, request, quota)
        return [(request.member, answered)]

    def _lease(self, found: _LeasedPass, request: LeaseRequest, quota: int) -> SamplesLeased:
        given, ranges = found.given.get(_whose(request), 0), tuple[Range, ...]()
        # While a round closes, a lease is for the next one at the earliest.
        ahead = max(given // quota, int(found.closing))
        # Too few samples for a batch are left for the end of the pass, when all share them.
        if count(found.pool) >= request.least and not (ahead and self._hoards(found, request.member)):
            taken, found.pool = take(found.pool, request.batch)
            ranges = tuple(taken)
            found.held.setdefault(request.member, []).append(HeldLease(ahead=ahead, ranges=ranges))
            found.given[_whose(request)] = max(given, ahead * quota) + 1
        leased = SamplesLeased(key=request.key, round=found.round, number=request.number, ahead=ahead, ranges=ranges)
        found.answers[request.member] = leased
        return leased

    def _hoards(self, found: _LeasedPass, member: str) -> bool:
        ahead = [lease for lease in found.held.get(member, ()) if lease.ahead]
        return self._is_remote(member) and len(ahead) >= MOST_AHEAD


def _terms(request: LeaseRequest) -> tuple[int, int, int, bool]:
    return request.batch, request.least, request.steps, request.fastest


def _whose(request: LeaseRequest) -> str:
    """Whose batches are counted: the member's own, or those of all."""
    return request.member if request.fastest else ""


def _quota(request: LeaseRequest, members: Sequence[str]) -> int:
    """Return how many batches of a round are counted together."""
    return request.steps if request.fastest else request.steps * len(members)


def _given(held: Mapping[str, Sequence[HeldLease]], request: LeaseRequest, members: Sequence[str]) -> dict[str, int]:
    """Count the leases of a round so far, so that no worker gets one for an earlier round than those it holds."""
    together = held if request.fastest else {"": [lease for leases in held.values() for lease in leases]}
    quota = _quota(request, members)
    return {
        whose: max(len(leases), quota * max((lease.ahead for lease in leases), default=0))
        for whose, leases in together.items()
    }


def count(pool: Iterable[Range]) -> int:
    """Count the positions in ranges."""
    return sum(end - begin for begin, end in pool)


def take(pool: Sequence[Range], number: int) -> tuple[list[Range], list[Range]]:
    """Split a pool into its lowest `number` positions and the rest."""
    taken, rest = list[Range](), list[Range]()
    for begin, end in sorted(pool):
        cut = min(end, begin + number)
        number -= cut - begin
        taken += [(begin, cut)] * (cut > begin)
        rest += [(cut, end)] * (end > cut)
    return taken, rest


def subtract(pool: Iterable[Range], out: Iterable[Range]) -> list[Range]:
    """Return the positions of `pool` that are not in `out`."""
    kept = list(pool)
    for begin, end in out:
        kept = [part for a, b in kept for part in ((a, min(b, begin)), (max(a, end), b)) if part[0] < part[1]]
    return kept
