"""The work of simulated members: operations over samples, and the state that a newcomer needs to take part."""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.membership.view import MembershipView

BATCH = 2


@dataclass(frozen=True)
class OperationContent:
    """The outcome of an operation: its participants, and the samples used."""

    generation: int
    members: tuple[str, ...]
    positions: tuple[int, ...]
    plan: tuple[str, int] = ("", 0)
    """By which plan all of them made it, and its number."""


@dataclass(frozen=True)
class OperationPart:
    """One member's part of an operation."""

    sender: str
    generation: int
    number: int
    lease: tuple[int, ...]
    plan: tuple[str, int] = ("", 0)


@dataclass(frozen=True)
class SimulatedState:
    """All that a fresh member needs to go on as the donor does."""

    generation: int
    lineage: int
    history: tuple[OperationContent, ...]
    pool: "SamplePool"
    dealt: MembershipView


@dataclass
class SamplePool:
    """Samples still to be used: returned ones first, then new ones. The same on all members at the same operation."""

    next: int = 0
    returned: tuple[int, ...] = ()
    leased: tuple[int, ...] = ()

    def deal(self, members: int) -> list[tuple[int, ...]]:
        """The leases of the next step, by rank."""
        wanted = members * BATCH
        old = self.returned[:wanted]
        fresh = tuple(range(self.next, self.next + wanted - len(old)))
        self.next += len(fresh)
        self.returned = self.returned[len(old) :]
        self.leased = old + fresh
        return [self.leased[r * BATCH : (r + 1) * BATCH] for r in range(members)]

    def use(self, positions: Sequence[int]) -> None:
        """What was leased and not used comes back."""
        self.returned = tuple(p for p in self.leased if p not in set(positions)) + self.returned
        self.leased = ()

    def copy(self) -> "SamplePool":
        return SamplePool(self.next, self.returned, self.leased)
