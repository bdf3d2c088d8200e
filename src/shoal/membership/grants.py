"""Which key may speak for which member id, and the slots granted to workers of other machines."""

from collections import deque
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from shoal.hosts.status_board import MOST_WORKERS
from shoal.membership.invitation import RunBrief, RunQuery, Token, find_version_mismatch
from shoal.membership.protocol import JoinRequest, ProcessExited, Report
from shoal.membership.session import member_name, slot_of
from shoal.membership.view import MOST_MEMBERS, Name


class KeyBound(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An entry of the log: this id came with this key."""

    member: Name
    key: str


class KeyRegister:
    """`allowed` is None where no keys are used."""

    def __init__(self, allowed: Mapping[bytes, int] | None) -> None:
        self._allowed = allowed  # read each time, because invitations are added and withdrawn
        self._keys: dict[str, str] = {}

    def add(self, entry: KeyBound) -> None:
        self._keys[entry.member] = entry.key

    def owner(self, member: str) -> str:
        """The key a member came with; where there are none, each stands for itself."""
        return self._keys.get(member, member)

    def objection(self, report: Report, key: str, living: Container[str], taken: int) -> str:
        """Why a report is not to be heard; empty: it may be. `living` are the ids that live, `taken` their number."""
        if isinstance(report, JoinRequest) and report.member not in living and taken >= MOST_MEMBERS:
            return f"there are {taken} members already, and no more can be"
        if isinstance(report, ProcessExited):
            return "only a launcher says that a process is gone"
        if self._allowed is None:
            return ""
        owner = self._keys.get(report.member)
        if owner is not None:
            return "" if owner == key else f"the id {report.member} belongs to another key"
        if not isinstance(report, JoinRequest):
            return f"{report.member} has not said Hello"
        most = self._allowed.get(key.encode(), 0)
        held = sum(owner == key and member in living for member, owner in self._keys.items())
        return "" if held < most else f"{held} of {most} members live under this key already"

    def binds(self, report: Report, key: str) -> KeyBound | None:
        """What has to be written down before this report is heard."""
        if self._allowed is None or report.member in self._keys:
            return None
        bound = KeyBound(member=report.member, key=key)
        self.add(bound)
        return bound


PATIENCE = 600.0
"""Seconds in which a worker that was promised a slot must come."""
RETRY = 10.0
"""Seconds after which it gives way to another of its key, if it has not come: that machine may have begun again."""

GRANTS, PERIOD = 30, 3600.0
"""Ids that one key may be given for each worker that it is good for, in so many seconds: each costs the log a few
entries. A machine that comes back every two minutes does not come to that."""


class SlotGranted(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An entry of the log: this id belongs to the holder of this key."""

    member: Name
    key: str
    token: Token


@dataclass(frozen=True)
class JoinPolicy:
    """Admits workers of other machines to a run that trains, and describes the run to them."""

    brief: RunBrief
    versions: Mapping[str, str]
    allowed: Mapping[bytes, int]
    """By public key: how many members may come with it."""
    first: int
    """Slots below are those of the run's own machine."""
    most: int = MOST_WORKERS
    """Members of other machines, under all keys together."""


class SlotGrants:
    """`lost`: the ids that are no members any more."""

    def __init__(self, welcome: JoinPolicy | None, lost: Container[str]) -> None:
        self.welcome, self.lost = welcome, lost
        self._most: Mapping[bytes, int] = welcome.allowed if welcome is not None else {}  # may change meanwhile
        self._granted: dict[str, SlotGranted] = {}
        self._since: dict[str, float] = {}
        self._recent: dict[str, deque[float]] = {}
        """By key: when it was given ids, since this coordinator began."""

    def add(self, entry: SlotGranted, now: float) -> None:
        self._granted[entry.member] = entry
        self._since[entry.member] = now

    def refusal(self, ask: RunQuery, key: str) -> str:
        """Why there is nothing for this one; empty: there may be."""
        if self.welcome is None:
            return "this run lets nobody in; start it with shoal run --listen"
        if reason := find_version_mismatch(self.welcome.versions, ask.versions):
            return reason
        if self.told(ask, key):
            return ""
        entries = list(self._open())
        most, have = self._most.get(key.encode(), 0), sum(entry.key == key for entry in entries)
        if have + ask.workers > most:
            return (
                f"{have} workers are here under this key and {ask.workers} more want in; it is good for {most}, and "
                "shoal keys invite --workers K makes one for more"
            )
        if len(entries) + ask.workers > self.welcome.most:
            return (
                f"{len(entries)} workers of other machines are here and {ask.workers} more want in; the run takes "
                f"{self.welcome.most} (--max-workers)"
            )
        return ""

    def may_soon(self, ask: RunQuery, key: str) -> bool:
        """Whether a key that is good for no more now would be, if the workers under it were given up.

        A machine that was killed and is started again at once asks before the others have missed it.
        """
        if self.welcome is None or find_version_mismatch(self.welcome.versions, ask.versions):
            return False
        most, have = self._most.get(key.encode(), 0), sum(entry.key == key for entry in self._open())
        return ask.workers <= most < have + ask.workers

    def too_often(self, ask: RunQuery, key: str, now: float) -> str:
        """Why a key that may join must wait; empty: it need not."""
        recent, most = self._recent.get(key, deque()), GRANTS * self._most.get(key.encode(), 0)
        while recent and now - recent[0] > PERIOD:
            recent.popleft()
        if ask.look or self.told(ask, key) or not most or len(recent) + ask.workers <= most:
            return ""
        wait = PERIOD - (now - recent[0]) if recent else PERIOD
        return f"workers under this key have joined {len(recent)} times in an hour, and may {most}; wait {wait:.0f} s"

    def told(self, ask: RunQuery, key: str) -> list[str]:
        """What was promised to this very question before."""
        return [e.member for e in self._granted.values() if (e.key, e.token) == (key, ask.token)]

    def replaced(self, ask: RunQuery, key: str) -> list[str]:
        """The lost members whose slots the asking launcher's workers take: it knows that they are gone."""
        return [e.member for e in self._open() if (e.key, slot_of(e.member)) == (key, ask.slot)]

    def abandoned(self, ask: RunQuery, key: str, here: Container[str], now: float) -> list[str]:
        """Members promised a slot under this key that have not come, if the key has no other slot left."""
        own = [entry.member for entry in self._open() if entry.key == key]
        if len(own) + ask.workers <= self._most.get(key.encode(), 0) or self.told(ask, key):
            return []
        return [member for member in own if member not in here and now - self._since[member] > RETRY]

    def choose(self, ask: RunQuery, key: str, now: float = 0.0) -> list[SlotGranted]:
        """Free slots, as many as asked for, or none; to be written down, then to be told."""
        assert self.welcome is not None
        taken = {slot_of(entry.member) for entry in self._open()}
        used = {slot_of(member) for member in self._granted}
        free = [slot for slot in range(self.welcome.first, MOST_WORKERS) if slot not in taken]
        # one that was never used, if there is: a machine that comes back finds its own
        free.sort(key=lambda slot: (slot != ask.slot, slot in used, slot))
        if len(free) < ask.workers:
            return []
        self._recent.setdefault(key, deque()).extend([now] * ask.workers)
        start = len(self._granted) + 1
        names = [member_name(slot, start + n) for n, slot in enumerate(sorted(free[: ask.workers]))]
        return [SlotGranted(member=name, key=key, token=ask.token) for name in names]

    def objection(self, report: Report, key: str) -> str:
        """Why a Hello is not to be heard; empty: it may be."""
        if not isinstance(report, JoinRequest):
            return ""
        granted = self._granted.get(report.member)
        if key.encode() not in self._most:
            own = granted is None and not report.info.remote
            return "" if own else f"the id {report.member} is for a worker of another machine"
        if granted is None or granted.key != key or not report.info.remote:
            return f"the id {report.member} was not given to this key; start the worker with shoal join"
        return ""

    def late(self, here: Container[str], now: float) -> list[str]:
        """Members that were promised a slot and have not come."""
        coming = [entry.member for entry in self._open() if entry.member not in here]
        return [member for member in coming if now - self._since[member] > PATIENCE]

    def _open(self) -> Iterator[SlotGranted]:
        return (entry for entry in self._granted.values() if entry.member not in self.lost)
