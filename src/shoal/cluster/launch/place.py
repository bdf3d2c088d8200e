"""Where the workers of `shoal run` are: on this host, sharing its memory, or on the emulated hosts of a lab."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shoal.cluster.arena import Arena
from shoal.cluster.board import Board
from shoal.cluster.coordinator.grants import Welcome
from shoal.cluster.group import Group
from shoal.cluster.membership.credentials import Key, Lock
from shoal.cluster.membership.elastic import Elastic
from shoal.cluster.shared import SharedGroup


@dataclass(frozen=True)
class Office:
    """Where the coordinator of a run sits."""

    address: str
    lock: Lock | None = None
    enter: Callable[[], object] = lambda: None
    """In its freshly forked process: go there."""
    welcome: Welcome | None = None
    """Whom it lets in from other machines."""


class Place(ABC):
    """Opened by the launcher before it forks, asked by it now and then, closed when all workers are gone."""

    speed: float = 1.0
    """In a worker that has entered: below 1, it has to slow itself down by sleeping."""
    replay: bool = False
    """Whether workers sleep instead of computing, once it is known how long it takes."""

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def office(self, folder: Path) -> Office:
        """For the coordinator; `folder` is the user's alone."""

    def invitation(self, address: str) -> str:
        """What to tell the user when the coordinator serves at `address`; empty: nothing."""
        return ""

    def key(self, rank: int) -> Key | None:
        """By which the coordinator knows a worker; None: it needs none."""
        return None

    @abstractmethod
    def enter(self, rank: int, size: int, session: Elastic | None = None) -> Group:
        """In a freshly forked worker: go there and meet the others, or follow the session's views."""

    @abstractmethod
    def tick(self, board: Board) -> None:
        """Time passes, about twenty times a second."""

    @abstractmethod
    def close(self) -> None: ...


class OneHost(Place):
    """Here: the null member."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena

    def open(self) -> None:
        pass

    def office(self, folder: Path) -> Office:
        return Office(f"ipc://{folder}/coordinator")

    def enter(self, rank: int, size: int, session: Elastic | None = None) -> Group:
        return SharedGroup(self.arena, rank, size, session)

    def tick(self, board: Board) -> None:
        pass

    def close(self) -> None:
        pass
