"""Who may speak for whom: a member's id belongs to the key it first came with, for ever.

A key lets in as many members at a time as the list of keys says, usually one: whoever has one credential cannot
become many members. On one host there are no keys, and everybody who reaches the socket is this user.
"""

from collections.abc import Container, Mapping

import msgspec

from shoal.cluster.membership.messages import Gone, Hello, Report
from shoal.cluster.membership.view import MOST_MEMBERS, Name


class Bound(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """An entry of the log: this id came with this key."""

    member: Name
    key: str


class Register:
    """`allowed` is None where no keys are used."""

    def __init__(self, allowed: Mapping[bytes, int] | None) -> None:
        self._allowed = allowed  # read anew each time: invitations come and go
        self._keys: dict[str, str] = {}

    def add(self, entry: Bound) -> None:
        self._keys[entry.member] = entry.key

    def owner(self, member: str) -> str:
        """The key a member came with; where there are none, each stands for itself."""
        return self._keys.get(member, member)

    def objection(self, report: Report, key: str, seats: Container[str], taken: int) -> str:
        """Why a report is not to be heard; empty: it may be. `seats` are the ids that live, `taken` their number."""
        if isinstance(report, Hello) and report.member not in seats and taken >= MOST_MEMBERS:
            return f"there are {taken} members already, and no more can be"
        if isinstance(report, Gone):
            return "only a launcher says that a process is gone"
        if self._allowed is None:
            return ""
        owner = self._keys.get(report.member)
        if owner is not None:
            return "" if owner == key else f"the id {report.member} belongs to another key"
        if not isinstance(report, Hello):
            return f"{report.member} has not said Hello"
        most = self._allowed.get(key.encode(), 0)
        living = sum(owner == key and member in seats for member, owner in self._keys.items())
        return "" if living < most else f"{living} of {most} members live under this key already"

    def binds(self, report: Report, key: str) -> Bound | None:
        """What has to be written down before this report is heard."""
        if self._allowed is None or report.member in self._keys:
            return None
        bound = Bound(member=report.member, key=key)
        self.add(bound)
        return bound
