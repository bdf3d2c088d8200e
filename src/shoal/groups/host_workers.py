"""Workers of one host in a run over links: they sum in shared memory before anything travels."""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from shoal.groups.flag_waiter import FlagWaiter
from shoal.hosts import status_board
from shoal.hosts.arena import ArenaRegions, SharedArena
from shoal.membership.session import MembershipSession, slot_of
from shoal.membership.view import MembershipView

# Numbers of a new view are above all of the old one, so that no flag has to be reset while others may read it.
VIEW_BITS = 40
"""Flag numbers reserved for a view: more than the rounds of any run."""


class CopyHost(Protocol):
    """Workers that share one host's memory, as a copy of a model uses them."""

    @property
    def slot(self) -> int: ...

    @property
    def places(self) -> Sequence[int]:
        """Return the slots that have memory here, occupied or not."""

    @property
    def members(self) -> Sequence[int]:
        """Return the slots of the members in the view, in order of rank."""

    def region(self, size: int) -> memoryview:
        """Map `size` more bytes of shared memory; all workers must ask for the same sizes in the same order."""


class SoleWorker:
    """A worker that shares its host with no other: the null member."""

    slot = 0
    places = members = (0,)

    def region(self, size: int) -> memoryview:
        return memoryview(bytearray(size))


class HostSharing(CopyHost, Protocol):
    """The same, as engines use them."""

    @property
    def session(self) -> MembershipSession: ...

    @property
    def patience(self) -> FlagWaiter: ...

    @property
    def base(self) -> int:
        """Return the number from which flags count in this view."""


@dataclass(frozen=True)
class HostWorkers:
    """The slots of one launcher's workers."""

    slots: tuple[int, ...]
    # Random instead of the host's name: containers may share that, and not their memory.
    name: str = field(default_factory=lambda: secrets.token_hex(8))


class HostGroup:
    """The memory that a worker shares with the others of its host."""

    def __init__(
        self,
        arena: SharedArena,
        host_workers: HostWorkers,
        slot: int,
        on: status_board.StatusBoard,
        seconds: float,
        session: MembershipSession,
    ) -> None:
        self.name, self.slot, self.session = host_workers.name, slot, session
        self.places: Sequence[int] = host_workers.slots
        self.members: Sequence[int] = [slot]
        self.patience = FlagWaiter(on, slot, seconds, session)
        self.regions = ArenaRegions(arena, status_board.BYTES)
        self.region = self.regions.take

    def enter(self, view: MembershipView, host_groups: Sequence[str]) -> None:
        """Enter a view; `host_groups`: those of all members, in order of rank."""
        self.members = [slot_of(m) for m, name in zip(view.members, host_groups, strict=True) if name == self.name]
        self.patience.wait_for(self.members)

    @property
    def base(self) -> int:
        return first_number(self.session.view)


def first_number(view: MembershipView) -> int:
    """Return the number from which flags count in a view: above all that were used before."""
    return view.generation << VIEW_BITS


def leaders(view: MembershipView, host_groups: Iterable[str]) -> list[int]:
    """Return the slots of the first worker of each host group."""
    return [slot_of(member) for member in leading_members(view.members, host_groups)]


def leading_members(members: Sequence[str], host_groups: Iterable[str]) -> list[str]:
    """Return the first member of each host group; a member without a group is its own."""
    first: dict[str, str] = {}
    for member, name in zip(members, host_groups, strict=True):
        first.setdefault(name or member, member)
    return list(first.values())
