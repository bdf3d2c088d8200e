"""Where the workers of `shoal run` are: on this host, sharing its memory, or on the emulated hosts of a lab."""

from abc import ABC, abstractmethod

from shoal.cluster.arena import Arena
from shoal.cluster.board import Board
from shoal.cluster.group import Group
from shoal.cluster.membership.session import Session
from shoal.cluster.shared import SharedGroup


class Place(ABC):
    """Opened by the launcher before it forks, asked by it now and then, closed when all workers are gone."""

    speed: float = 1.0
    """In a worker that has entered: below 1, it has to slow itself down by sleeping."""
    replay: bool = False
    """Whether workers sleep instead of computing, once it is known how long it takes."""

    @abstractmethod
    def open(self) -> None: ...

    @abstractmethod
    def enter(self, rank: int, size: int, session: Session | None = None) -> Group:
        """In a freshly forked worker: go there and meet the others, whose view may change if there is a session."""

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

    def enter(self, rank: int, size: int, session: Session | None = None) -> Group:
        return SharedGroup(self.arena, rank, size, session)

    def tick(self, board: Board) -> None:
        pass

    def close(self) -> None:
        pass
