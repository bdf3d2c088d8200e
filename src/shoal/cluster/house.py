"""The workers of one machine in a run over links: they share its memory, and may add up there before anything travels.

    launcher    Household(name, seats)             made before it forks; its name is nobody else's
    worker      House(arena, household, seat, …)   its memory and its flags, as those of a group on one host
    coordinator tells with every view who lives where; the first of each house in a view speaks for it

Rows of flags have a place for every seat up to the highest, so that a seat is the same number everywhere.
"""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from shoal.cluster import board
from shoal.cluster.arena import Arena, Regions
from shoal.cluster.membership.session import Session, seat_of
from shoal.cluster.membership.view import View
from shoal.cluster.patience import Patience

VIEW_BITS = 40
"""Numbers of a view: more rounds than any run has."""


class Sharing(Protocol):
    """Workers that share one host's memory, as engines use them."""

    @property
    def session(self) -> Session: ...

    @property
    def seat(self) -> int: ...

    @property
    def places(self) -> Sequence[int]:
        """Seats that have memory here, whether somebody sits there now or not."""

    @property
    def members(self) -> Sequence[int]:
        """Seats of those in the view, in order of rank."""

    @property
    def patience(self) -> Patience: ...

    @property
    def base(self) -> int:
        """The number from which flags count in this view."""

    def region(self, size: int) -> memoryview:
        """`size` more bytes of shared memory, the same for every worker; all ask for the same in the same order."""


@dataclass(frozen=True)
class Household:
    """The seats of one launcher's workers."""

    seats: tuple[int, ...]
    name: str = field(default_factory=lambda: secrets.token_hex(8))


class House:
    """What a worker shares with the others of its household."""

    def __init__(
        self, arena: Arena, household: Household, seat: int, on: board.Board, seconds: float, session: Session
    ) -> None:
        self.name, self.seat, self.session = household.name, seat, session
        self.places: Sequence[int] = household.seats
        self.members: Sequence[int] = [seat]
        self.patience = Patience(on, seat, seconds, session)
        self.region = Regions(arena, board.BYTES).take

    def enter(self, view: View, houses: Sequence[str]) -> None:
        """`houses` of all members, in order of rank."""
        self.members = [seat_of(m) for m, name in zip(view.members, houses, strict=True) if name == self.name]
        self.patience.seats = np.array(self.members)

    @property
    def base(self) -> int:
        return first_number(self.session.view)


def first_number(view: View) -> int:
    """From which flags count in a view: above all that were used before."""
    return view.epoch << VIEW_BITS


def leaders(view: View, houses: Iterable[str]) -> list[int]:
    """Seats of the first of each house; whoever has none speaks for itself."""
    first: dict[str, int] = {}
    for member, name in zip(view.members, houses, strict=True):
        first.setdefault(name or member, seat_of(member))
    return list(first.values())
