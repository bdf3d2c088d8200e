"""Who of other machines takes part in a run, as its launcher hears from the coordinator; and when all are gone."""

from shoal.cluster.membership.log import LEFT, LEFT_EARLY, Installed, Lost
from shoal.cluster.membership.session import seat_of
from shoal.core.clock import Deadline

GRACE = 30.0
"""Seconds in which guests may still need the coordinator after the workers of this machine are done."""


class Guests:
    """`said`: one line for each that came or went, until it is taken away."""

    def __init__(self) -> None:
        self._hosts: dict[str, str] = {}
        self._grace: Deadline | None = None
        self.said: list[str] = []

    def hear(self, said: object) -> None:
        """What the coordinator has decided, if it is about members."""
        if isinstance(said, Installed):
            self._installed(said)
        elif isinstance(said, Lost):
            self._lost(said)

    def _installed(self, said: Installed) -> None:
        for member, plate in zip(said.install.view.members, said.install.plates, strict=False):
            if plate.guest and member not in self._hosts:
                self._hosts[member] = plate.host
                self.said.append(f"worker {seat_of(member)} joined from {plate.host}")

    def _lost(self, said: Lost) -> None:
        host = self._hosts.pop(said.member, None)
        if host is None or said.reason == LEFT:
            return
        who = f"worker {seat_of(said.member)} of {host}"
        what = "has left" if said.reason == LEFT_EARLY else f"was lost ({said.reason})"
        self.said.append(f"{who} {what}; the others go on")

    def take(self) -> list[str]:
        """What was said since the last time."""
        said, self.said = self.said, []
        return said

    @property
    def finishing(self) -> bool:
        """Whether some are about to finish what the workers here have finished."""
        if self._hosts and self._grace is None:
            self._grace = Deadline.after(GRACE)
        return bool(self._hosts) and self._grace is not None and not self._grace.expired
