"""Which key may speak for which member id.

A member id belongs to the key it joined with, for good: the binding is in the log, so it survives a restart.
"""

from collections.abc import Container, Mapping

import msgspec

from shoal.membership.protocol import JoinRequest, ProcessExited, Report
from shoal.membership.view import MOST_MEMBERS, Name


class KeyBound(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Log entry: this member id belongs to this key."""

    member: Name
    key: str


class KeyRegister:
    """The key of every member id. `allowed` is None where no keys are used."""

    def __init__(self, allowed: Mapping[bytes, int] | None) -> None:
        self._allowed = allowed  # not copied, because invitations are added and withdrawn while the run trains
        self._keys: dict[str, str] = {}

    def add(self, entry: KeyBound) -> None:
        self._keys[entry.member] = entry.key

    def owner(self, member: str) -> str:
        """Return the key of a member; its id if there are no keys, so that each counts as an owner of its own."""
        return self._keys.get(member, member)

    def objection(self, report: Report, key: str, living: Container[str], taken: int) -> str:
        """Return why a report is ignored, or "". `living`: the ids of living members; `taken`: how many there are."""
        if isinstance(report, JoinRequest) and report.member not in living and taken >= MOST_MEMBERS:
            return f"there are {taken} members already, and no more can be"
        if isinstance(report, ProcessExited):
            return "only a launcher may report that a process is gone"
        if self._allowed is None:
            return ""
        owner = self._keys.get(report.member)
        if owner is not None:
            return "" if owner == key else f"the id {report.member} belongs to another key"
        if not isinstance(report, JoinRequest):
            return f"{report.member} has not asked to join"
        most = self._allowed.get(key.encode(), 0)
        # Only the living count, so that a machine may come back as often as it is killed.
        held = sum(owner == key and member in living for member, owner in self._keys.items())
        return "" if held < most else f"{held} of {most} members live under this key already"

    def binds(self, report: Report, key: str) -> KeyBound | None:
        """Return the log entry that must be durable before this report takes effect, if there is one."""
        if self._allowed is None or report.member in self._keys:
            return None
        bound = KeyBound(member=report.member, key=key)
        self.add(bound)
        return bound
