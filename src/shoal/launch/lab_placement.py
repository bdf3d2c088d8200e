"""Workers on the emulated hosts of a lab: one each, so that they talk over its network and nowhere else."""

import time
from functools import partial
from pathlib import Path

from torch._C._distributed_c10d import FileStore

from shoal.core.clock import now
from shoal.core.events import LabEventApplied
from shoal.core.journal import EventJournal
from shoal.core.record import launcher_file
from shoal.groups.base import WorkerGroup
from shoal.groups.links import LinkedGroup, trusted
from shoal.groups.process_group import TorchGroup
from shoal.hosts.arena import SharedArena
from shoal.hosts.status_board import BYTES, StatusBoard
from shoal.lab.apply import apply
from shoal.lab.lab import NetworkLab
from shoal.lab.spec import LabSpec
from shoal.lab.speed import how
from shoal.lab.timeline import EventTimeline
from shoal.launch.data_seats import DataServerSeat, DataTierAddress
from shoal.launch.placement import CoordinatorEndpoint, WorkerPlacement
from shoal.launch.services import ServiceSeat
from shoal.membership.credentials import ClientCredentials, ServerCredentials
from shoal.membership.elastic_session import ElasticSession
from shoal.transport.endpoint import BookEntry, LinkEndpoint
from shoal.transport.keys import CurveKeyPair

COORDINATOR_PORT, PORT, DATA_PORT = 7701, 7700, 7710
"""Where coordinator and workers listen: every host of a lab has all ports to itself."""


class LabPlacement(WorkerPlacement):
    """The hosts of `spec`; worker r is on host r, and the coordinator, if there is one, on a host after them."""

    def __init__(
        self, spec: LabSpec, arena: SharedArena, directory: Path, coordinator: bool, workers: int | None = None
    ) -> None:
        self.spec, self.arena, self.directory = spec, arena, directory
        self._workers = spec.size if workers is None else workers
        self.replay = spec.compute == "replay"
        self.lab = NetworkLab(spec, coordinator=coordinator)
        self.timeline = EventTimeline(spec)
        self._keys = [CurveKeyPair.new() for _ in spec.hosts]  # before the fork, so that everybody knows everybody
        self._pairs = [CurveKeyPair.new() for _ in spec.hosts]
        self._coordinator_keys = CurveKeyPair.new()
        self._began: float | None = None
        self._journal: EventJournal | None = None

    def open(self) -> None:
        self.lab.__enter__()
        self._journal = EventJournal(launcher_file(self.directory))
        for rank, host in enumerate(self.spec.hosts):
            if host.speed < 1:
                self._note(f"host {rank} computes at speed {host.speed:g} by {how(self.lab.quota(rank), host.speed)}")

    def coordinator_endpoint(self, folder: Path) -> CoordinatorEndpoint:
        host = self.spec.size
        allowed = {pair.public: 1 for pair in self._pairs}
        address = f"tcp://{self.lab.hosts[host].address}:{COORDINATOR_PORT}"
        return CoordinatorEndpoint(
            address, ServerCredentials(self._coordinator_keys, allowed), lambda: self.lab.enter(host)
        )

    def service_seat(self, number: int, file: str) -> ServiceSeat:
        """Servers are spread over hosts without a worker, then over all, so that k of them have k links."""
        host = (self._workers + number) % self.spec.size
        address, keys = f"tcp://{self.lab.hosts[host].address}:*", CurveKeyPair.new()
        return ServiceSeat(number, address, self.directory.name, keys, enter=lambda: self.lab.enter(host))

    def seat_data_servers(self, number: int, folder: str) -> tuple[list[DataServerSeat], DataTierAddress]:
        """Data servers are spread as services are; all workers of the run show them one key, which they inherit."""
        pair, clients, seats = CurveKeyPair.new(), CurveKeyPair.new(), []
        for each in range(number):
            host = (self._workers + each) % self.spec.size
            address = f"tcp://{self.lab.hosts[host].address}:{DATA_PORT + each}"
            enter = partial(self.lab.enter, host)
            seats.append(DataServerSeat(each, address, ServerCredentials(pair, {clients.public: self._workers}), enter))
        shown = ClientCredentials(clients, pair.public)
        return seats, DataTierAddress(tuple(seat.address for seat in seats), (shown,) * number)

    def key(self, rank: int) -> ClientCredentials:
        return ClientCredentials(self._pairs[rank], self._coordinator_keys.public)

    def enter(self, rank: int, size: int, session: ElasticSession | None = None) -> WorkerGroup:
        self.speed = self.spec.hosts[rank].speed if self.lab.quota(rank) is None else 1.0
        self.lab.enter(rank)
        # The board is the launcher's eye and goes through memory; everything workers say to each other does not.
        board = StatusBoard(self.arena.map(0, BYTES))
        if trusted():
            store = FileStore(str(self.directory / "rendezvous-lab"), size)
            return TorchGroup(store, rank, size, board)
        keys, hosts = self._keys, self.lab.hosts
        if session is not None:
            self._keys, self._pairs = [], []  # the secrets of others are not this worker's
            endpoint = LinkEndpoint(f"tcp://{hosts[rank].address}:*", CurveKeyPair.new())
            return LinkedGroup(self.directory.name, {}, rank, endpoint, board, session, servers=self.servers)
        book = {r: BookEntry(f"tcp://{hosts[r].address}:{PORT}", keys[r].public, str(r)) for r in range(size)}
        mine, self._keys = keys[rank], []  # the others' secrets are not this worker's
        return LinkedGroup(self.directory.name, book, rank, LinkEndpoint(book[rank].address, mine), board)

    def tick(self, board: StatusBoard) -> None:
        """The clock starts with the first step, so that imports do not count."""
        step = board.front(self.spec.size)
        if self._began is None and step is not None:
            self._began = now()
        second = now() - self._began if self._began is not None else 0.0
        if self._began is None and not self._due_at_start():
            board.gate(self.timeline.next_step)
            return
        for due in self.timeline.due(second, step or 0):
            apply(self.lab, due.action)
            applied = due.applied(second, step or 0)
            self._note(applied.event, applied.planned, applied.second, applied.step)
        board.gate(self.timeline.next_step)

    def _due_at_start(self) -> bool:
        return self.timeline.next_step == 0 or self.timeline.next_second == 0.0

    def _note(self, text: str, planned: str = "start", second: float = 0.0, step: int = 0) -> None:
        if self._journal is not None:
            self._journal.emit(LabEventApplied(at=time.time(), text=text, planned=planned, second=second, step=step))
            self._journal.flush()

    def close(self) -> None:
        self.lab.close()
        if self._journal is not None:
            self._journal.close()
