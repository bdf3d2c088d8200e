"""Slots granted to workers of other machines: which key gets which member ids, how many, and how often.

`invitation` draws the conversation. A grant is written to the log before the machine hears of it, so a coordinator that
is started again keeps its promise.
"""

from collections import deque
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from shoal.hosts.status_board import MOST_WORKERS
from shoal.membership.invitation import RunBrief, RunQuery, Token, find_version_mismatch
from shoal.membership.protocol import JoinRequest, Report
from shoal.membership.session import member_name, slot_of
from shoal.membership.view import Name

PATIENCE = 600.0
"""Seconds a granted slot waits for its worker."""
RETRY = 10.0
"""Seconds after which an unused grant gives way to another worker of its key: that machine may have begun again."""

GRANTS, PERIOD = 30, 3600.0
"""Ids granted per worker of a key in this many seconds. Each grant costs log entries, so a loop must not fill
the disk; a machine that comes back every two minutes stays below the limit."""


class SlotGranted(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Log entry: this id belongs to the holder of this key."""

    member: Name
    key: str
    token: Token


@dataclass(frozen=True)
class JoinPolicy:
    """Admits workers of other machines to a run that trains, and describes the run to them."""

    brief: RunBrief
    versions: Mapping[str, str]
    allowed: Mapping[bytes, int]
    """How many members may join with each public key."""
    first: int
    """The first slot for other machines; those below are the run's own."""
    most: int = MOST_WORKERS
    """Members of other machines, under all keys together."""


class SlotGrants:
    """The slots granted in one run. `lost`: ids of members that are gone, whose slots are free again."""

    def __init__(self, welcome: JoinPolicy | None, lost: Container[str]) -> None:
        self.welcome, self.lost = welcome, lost
        self._most: Mapping[bytes, int] = welcome.allowed if welcome is not None else {}  # may change meanwhile
        self._granted: dict[str, SlotGranted] = {}
        self._since: dict[str, float] = {}
        self._recent: dict[str, deque[float]] = {}
        """By key: when ids were granted to it, since this coordinator began."""

    def add(self, entry: SlotGranted, now: float) -> None:
        self._granted[entry.member] = entry
        self._since[entry.member] = now

    def refusal(self, ask: RunQuery, key: str) -> str:
        """Return why this request gets no slot, or ""."""
        if self.welcome is None:
            return "this run admits no other machines; start it with shoal run --listen"
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
        """Return whether the key would be good for these workers if those it has now were lost.

        A machine that was killed and is started again at once asks before the others have missed it.
        """
        if self.welcome is None or find_version_mismatch(self.welcome.versions, ask.versions):
            return False
        most, have = self._most.get(key.encode(), 0), sum(entry.key == key for entry in self._open())
        return ask.workers <= most < have + ask.workers

    def too_often(self, ask: RunQuery, key: str, now: float) -> str:
        """Return why a key that may join must wait, or ""."""
        recent, most = self._recent.get(key, deque()), GRANTS * self._most.get(key.encode(), 0)
        # A sliding window; the deque holds no more than the limit lets in.
        while recent and now - recent[0] > PERIOD:
            recent.popleft()
        # Looking grants nothing, and a repeated request gets the ids it already has.
        if ask.look or self.told(ask, key) or not most or len(recent) + ask.workers <= most:
            return ""
        wait = PERIOD - (now - recent[0]) if recent else PERIOD
        return f"workers under this key have joined {len(recent)} times in an hour, and may {most}; wait {wait:.0f} s"

    def told(self, ask: RunQuery, key: str) -> list[str]:
        """Return the ids granted to this very request before; it is sent again when the answer was lost."""
        return [e.member for e in self._granted.values() if (e.key, e.token) == (key, ask.token)]

    def replaced(self, ask: RunQuery, key: str) -> list[str]:
        """Return the members whose slots the request takes over: their launcher asks, so it knows they are gone."""
        return [e.member for e in self._open() if (e.key, slot_of(e.member)) == (key, ask.slot)]

    def abandoned(self, ask: RunQuery, key: str, here: Container[str], now: float) -> list[str]:
        """Return members granted a slot under this key that never came, if the key has no other slot left."""
        own = [entry.member for entry in self._open() if entry.key == key]
        if len(own) + ask.workers <= self._most.get(key.encode(), 0) or self.told(ask, key):
            return []
        return [member for member in own if member not in here and now - self._since[member] > RETRY]

    def choose(self, ask: RunQuery, key: str, now: float = 0.0) -> list[SlotGranted]:
        """Choose as many free slots as requested, or none. The caller logs them before it answers."""
        assert self.welcome is not None
        taken = {slot_of(entry.member) for entry in self._open()}
        used = {slot_of(member) for member in self._granted}
        free = [slot for slot in range(self.welcome.first, MOST_WORKERS) if slot not in taken]
        # Slots that were never used come first, so that a machine that comes back finds its old one free.
        free.sort(key=lambda slot: (slot != ask.slot, slot in used, slot))
        if len(free) < ask.workers:
            return []
        self._recent.setdefault(key, deque()).extend([now] * ask.workers)
        # Grows with every grant of the log, so that no id is given twice even if its slot is.
        start = len(self._granted) + 1
        names = [member_name(slot, start + n) for n, slot in enumerate(sorted(free[: ask.workers]))]
        return [SlotGranted(member=name, key=key, token=ask.token) for name in names]

    def objection(self, report: Report, key: str) -> str:
        """Return why a JoinRequest is ignored, or ""."""
        if not isinstance(report, JoinRequest):
            return ""
        granted = self._granted.get(report.member)
        # A key of the run's own machine: it may use any id but one that was promised to a machine.
        if key.encode() not in self._most:
            own = granted is None and not report.info.remote
            return "" if own else f"the id {report.member} is for a worker of another machine"
        if granted is None or granted.key != key or not report.info.remote:
            return f"the id {report.member} was not given to this key; start the worker with shoal join"
        return ""

    def late(self, here: Container[str], now: float) -> list[str]:
        """Return members that were granted a slot long ago and have not come."""
        coming = [entry.member for entry in self._open() if entry.member not in here]
        return [member for member in coming if now - self._since[member] > PATIENCE]

    def _open(self) -> Iterator[SlotGranted]:
        return (entry for entry in self._granted.values() if entry.member not in self.lost)
