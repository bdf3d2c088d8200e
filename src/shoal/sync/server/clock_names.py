"""Whose clock a member's pushes count on: its own, or that of its host, whose workers push together.

    server(levels=2)    worker 0 ─┐ sum in the memory of the host
                        worker 1 ─┴─> one push of the host ──> one clock at the server

The clock of a host is named after its first worker, and keeps that name when this worker is lost: the next one of the
host speaks for it, and a push that comes again is known by its clock. Every push says whose changes are in it, so the
server knows of a lost worker how many of its steps count, whichever worker has sent them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shoal.core.errors import PayloadError


@dataclass
class ClockNames:
    """Of one shard whose hosts push together."""

    names: dict[str, str] = field(default_factory=dict)
    """Member -> its clock; of members that were lost in this round too."""
    counted: dict[str, int] = field(default_factory=dict)
    """Member -> the clock after the last push of this round that its change is in."""
    left: set[str] = field(default_factory=set)
    """Members that make no more steps in this round."""

    def follow(self, members: Sequence[str], hosts: Mapping[str, str]) -> list[str]:
        """Take in the members of a view, and on which host each is; return the clocks there are."""
        by_host = {hosts.get(m, ""): self.names[m] for m in members if m in self.names}
        for member in members:
            self.names[member] = by_host.setdefault(hosts.get(member, ""), member)
        return list(dict.fromkeys(self.names[member] for member in members))

    def check(self, member: str, among: Collection[str]) -> None:
        """PayloadError: a member pushes for others than the workers of its host."""
        own = self.names.get(member, member)
        if odd := next((each for each in among if self.names.get(each) != own), None):
            raise PayloadError(f"{member} pushes a change of {odd}, which is not on its host")

    def count(self, among: Iterable[str], clock: int) -> None:
        """The changes of these members are in a push."""
        self.counted.update(dict.fromkeys(among, clock + 1))

    def steps_since(self, members: Iterable[str], base: int) -> dict[str, int]:
        """How many steps of each member count since clock `base`."""
        return {member: max(self.counted.get(member, base) - base, 0) for member in members}

    def leave(self, member: str) -> None:
        self.left.add(member)

    def all_left(self, members: Iterable[str]) -> set[str]:
        """Clocks on which none of these members pushes any more in this round."""
        here = list(members)
        return {self.names[m] for m in here} - {self.names[m] for m in here if m not in self.left}

    def begin(self, members: Collection[str]) -> None:
        """A round begins."""
        self.names = {member: name for member, name in self.names.items() if member in members}
        self.counted, self.left = {}, set()
