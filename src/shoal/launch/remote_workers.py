"""The workers of other machines, as the launcher that began the run knows them from the coordinator's decisions."""

from shoal.core.clock import Deadline
from shoal.membership.log_entries import LEFT, LEFT_EARLY, MemberLost, ViewInstalled
from shoal.membership.session import slot_of

GRACE = 30.0
"""Seconds in which remote workers may still need the coordinator after the workers of this machine are done."""


class RemoteWorkers:
    """Which members are elsewhere, and a line for each that came or went."""

    def __init__(self) -> None:
        self._hosts: dict[str, str] = {}
        self._grace: Deadline | None = None
        self.said: list[str] = []
        """Lines that nobody has taken yet."""

    def hear(self, said: object) -> None:
        """Take in a decision of the coordinator, if it is about members."""
        if isinstance(said, ViewInstalled):
            self._installed(said)
        elif isinstance(said, MemberLost):
            self._lost(said)

    def _installed(self, said: ViewInstalled) -> None:
        for member, info in zip(said.install.view.members, said.install.infos, strict=False):
            if info.remote and member not in self._hosts:
                self._hosts[member] = info.host
                self.said.append(f"worker {slot_of(member)} joined from {info.host}")

    def _lost(self, said: MemberLost) -> None:
        host = self._hosts.pop(said.member, None)
        if host is None or said.reason == LEFT:
            return
        who = f"worker {slot_of(said.member)} of {host}"
        what = "has left" if said.reason == LEFT_EARLY else f"was lost ({said.reason})"
        self.said.append(f"{who} {what}; the others go on")

    def is_here(self, member: str) -> bool:
        return member in self._hosts

    def take(self) -> list[str]:
        """Return the lines since the last call."""
        said, self.said = self.said, []
        return said

    @property
    def finishing(self) -> bool:
        """Whether some are about to finish what the workers here have finished."""
        if self._hosts and self._grace is None:
            self._grace = Deadline.after(GRACE)
        return bool(self._hosts) and self._grace is not None and not self._grace.expired
