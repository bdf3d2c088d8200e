"""Workers of a machine that lets others join: they meet over links, for the next worker may come from anywhere.

    this machine: coordinator at HOST:PORT, workers at HOST and any free ports
    elsewhere:    shoal join HOST:PORT --key INVITATION

Every worker here has a fresh key for the coordinator and another for its door; machines that join have the key of their
invitation, or one of their own that was listed. The run's own key lets nobody in: it proves that this is the run.
"""

from collections import ChainMap
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from shoal.cluster.arena import Arena
from shoal.cluster.board import BYTES, Board
from shoal.cluster.coordinator.grants import Welcome
from shoal.cluster.group import Group
from shoal.cluster.house import Household
from shoal.cluster.launch.place import Office, Place
from shoal.cluster.linked import LinkedGroup
from shoal.cluster.links.door import Door
from shoal.cluster.links.keys import Keys
from shoal.cluster.membership.allow_list import AllowList
from shoal.cluster.membership.credentials import Key, Lock, Pair
from shoal.cluster.membership.elastic import Elastic


@dataclass(frozen=True)
class Listen:
    """Where a run listens, and for whom."""

    host: str
    """An address of this machine, in numbers."""
    port: int
    """0: any free one."""
    pair: Pair
    file: str
    """Where that pair is from, as the user wrote it."""
    guests: AllowList
    """By public key: how many members may come with it."""
    most: int
    """Members that may come in all."""


class Listening(Place):
    """On this host, with a door to others."""

    def __init__(self, listen: Listen, welcome: Welcome, arena: Arena, run: str, workers: int) -> None:
        self.listen, self.welcome, self.arena, self.run = listen, welcome, arena, run
        self._pairs = [Pair.new() for _ in range(workers)]  # before the fork, so that the coordinator knows them
        self._household = Household(tuple(range(workers)))

    def open(self) -> None:
        pass

    def office(self, folder: Path) -> Office:
        port = str(self.listen.port) if self.listen.port else "*"
        own = {pair.public: 1 for pair in self._pairs}
        guests = cast("MutableMapping[bytes, int]", self.listen.guests)  # as ChainMap wants it; nobody writes to it
        lock = Lock(self.listen.pair, ChainMap(own, guests), self.listen.guests)
        return Office(f"tcp://{self.listen.host}:{port}", lock, welcome=self.welcome)

    def invitation(self, address: str) -> str:
        where = address.removeprefix("tcp://")
        return f"others may join: shoal join {where} --key FILE, with a FILE of shoal keys invite {self.listen.file}"

    def key(self, rank: int) -> Key:
        return Key(self._pairs[rank], self.listen.pair.public)

    def enter(self, rank: int, size: int, session: Elastic | None = None) -> Group:
        assert session is not None
        self._pairs = []
        door = Door(f"tcp://{self.listen.host}:*", Keys.new())
        home = (self.arena, self._household)
        return LinkedGroup(self.run, {}, rank, door, Board(self.arena.map(0, BYTES)), session, home=home)

    def tick(self, board: Board) -> None:
        pass

    def close(self) -> None:
        pass
