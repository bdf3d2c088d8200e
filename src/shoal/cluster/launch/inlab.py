"""Workers on the emulated hosts of a lab: one each, so that they meet over its network and nowhere else.

The launcher plays the lab's timeline. Events planned by step are exact: the board holds a gate that no worker passes
before the event of that step has happened.
"""

import time
from pathlib import Path

from torch._C._distributed_c10d import FileStore

from shoal.cluster.arena import Arena
from shoal.cluster.board import BYTES, Board
from shoal.cluster.group import Group
from shoal.cluster.lab.lab import Lab
from shoal.cluster.lab.spec import Spec
from shoal.cluster.lab.speed import how
from shoal.cluster.lab.timeline import Timeline
from shoal.cluster.launch.place import Office, Place
from shoal.cluster.linked import LinkedGroup, trusted
from shoal.cluster.links.book import Entry
from shoal.cluster.links.door import Door
from shoal.cluster.links.keys import Keys
from shoal.cluster.membership.credentials import Key, Lock, Pair
from shoal.cluster.membership.elastic import Elastic
from shoal.cluster.spread import SpreadGroup
from shoal.core.clock import now
from shoal.core.events import Happened
from shoal.core.journal import Journal
from shoal.core.record import launcher_file

OFFICE = 7701
PORT = 7700
"""Where a worker listens: every host of a lab has all ports to itself."""


class InLab(Place):
    """The hosts of `spec`; worker r is on host r, and the coordinator, if there is one, on a host after them."""

    def __init__(self, spec: Spec, arena: Arena, directory: Path, coordinator: bool) -> None:
        self.spec, self.arena, self.directory = spec, arena, directory
        self.replay = spec.compute == "replay"
        self.lab = Lab(spec, coordinator=coordinator)
        self.timeline = Timeline(spec)
        self._keys = [Keys.new() for _ in spec.hosts]  # before the fork, so that everybody knows everybody
        self._pairs = [Pair.new() for _ in spec.hosts]
        self._office = Pair.new()
        self._began: float | None = None
        self._journal: Journal | None = None

    def open(self) -> None:
        self.lab.__enter__()
        self._journal = Journal(launcher_file(self.directory))
        for rank, host in enumerate(self.spec.hosts):
            if host.speed < 1:
                self._note(f"host {rank} computes at speed {host.speed:g} by {how(self.lab.quota(rank), host.speed)}")

    def office(self, folder: Path) -> Office:
        host = self.spec.size
        allowed = {pair.public: 1 for pair in self._pairs}
        address = f"tcp://{self.lab.hosts[host].address}:{OFFICE}"
        return Office(address, Lock(self._office, allowed), lambda: self.lab.enter(host))

    def key(self, rank: int) -> Key:
        return Key(self._pairs[rank], self._office.public)

    def enter(self, rank: int, size: int, session: Elastic | None = None) -> Group:
        self.speed = self.spec.hosts[rank].speed if self.lab.quota(rank) is None else 1.0
        self.lab.enter(rank)
        # The board is the launcher's eye and goes through memory; everything workers say to each other does not.
        board = Board(self.arena.map(0, BYTES))
        if trusted():
            store = FileStore(str(self.directory / "rendezvous-lab"), size)
            return SpreadGroup(store, rank, size, board)
        keys, hosts = self._keys, self.lab.hosts
        if session is not None:
            self._keys, self._pairs = [], []
            door = Door(f"tcp://{hosts[rank].address}:*", Keys.new())
            return LinkedGroup(self.directory.name, {}, rank, door, board, session)
        book = {r: Entry(f"tcp://{hosts[r].address}:{PORT}", keys[r].public, str(r)) for r in range(size)}
        mine, self._keys = keys[rank], []  # the others' secrets are not this worker's
        return LinkedGroup(self.directory.name, book, rank, Door(book[rank].address, mine), board)

    def tick(self, board: Board) -> None:
        """The clock starts with the first step, so that imports do not count."""
        step = board.front(self.spec.size)
        if self._began is None and step is not None:
            self._began = now()
        second = now() - self._began if self._began is not None else 0.0
        if self._began is None and not self._due_at_start():
            board.gate(self.timeline.next_step)
            return
        for due in self.timeline.due(second, step or 0):
            self.lab.apply(due.action)
            applied = due.applied(second, step or 0)
            self._note(applied.event, applied.planned, applied.second, applied.step)
        board.gate(self.timeline.next_step)

    def _due_at_start(self) -> bool:
        return self.timeline.next_step == 0 or self.timeline.next_second == 0.0

    def _note(self, text: str, planned: str = "start", second: float = 0.0, step: int = 0) -> None:
        if self._journal is not None:
            self._journal.emit(Happened(at=time.time(), text=text, planned=planned, second=second, step=step))
            self._journal.flush()

    def close(self) -> None:
        self.lab.close()
        if self._journal is not None:
            self._journal.close()
