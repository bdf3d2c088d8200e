"""A run that other machines may join: its workers talk over links from the start."""

from collections import ChainMap
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import msgspec

from shoal.groups.base import WorkerGroup
from shoal.groups.host_workers import HostWorkers
from shoal.groups.links import LinkedGroup
from shoal.hosts.arena import SharedArena
from shoal.hosts.status_board import BYTES, StatusBoard
from shoal.launch.placement import CoordinatorEndpoint, WorkerPlacement
from shoal.launch.services import ServiceSeat
from shoal.membership.allow_list import AllowList
from shoal.membership.credentials import ClientCredentials, ServerCredentials
from shoal.membership.elastic_session import ElasticSession
from shoal.membership.grants import JoinPolicy
from shoal.transport.endpoint import BookEntry, LinkEndpoint
from shoal.transport.keys import CurveKeyPair


@dataclass(frozen=True)
class ListenAddress:
    """Where a run listens, and for whom."""

    host: str
    """An address of this machine, in numbers."""
    port: int
    """0: any free one."""
    pair: CurveKeyPair
    file: str
    """Where that pair is from, as the user wrote it."""
    allowed: AllowList
    """By public key: how many members may come with it."""
    most: int
    """Members that may come in all."""


class ListenPlacement(WorkerPlacement):
    """On this host, with an endpoint for others."""

    def __init__(self, listen: ListenAddress, welcome: JoinPolicy, arena: SharedArena, run: str, workers: int) -> None:
        self.listen, self.welcome, self.arena, self.run = listen, welcome, arena, run
        self._pairs = [
            CurveKeyPair.new() for _ in range(workers)
        ]  # before the fork, so that the coordinator knows them
        self._host_workers = HostWorkers(tuple(range(workers)))

    def open(self) -> None:
        pass

    def coordinator_endpoint(self, folder: Path) -> CoordinatorEndpoint:
        port = str(self.listen.port) if self.listen.port else "*"
        own = {pair.public: 1 for pair in self._pairs}
        allowed = cast("MutableMapping[bytes, int]", self.listen.allowed)  # as ChainMap wants it; nobody writes to it
        lock = ServerCredentials(self.listen.pair, ChainMap(own, allowed), self.listen.allowed)
        return CoordinatorEndpoint(f"tcp://{self.listen.host}:{port}", lock, welcome=self.welcome)

    def service_seat(self, number: int, file: str) -> ServiceSeat:
        """Servers are on this machine, and any free port, as its workers are."""
        return ServiceSeat(number, f"tcp://{self.listen.host}:*", self.run, CurveKeyPair.new())

    def add_servers(self, servers: Sequence[BookEntry]) -> None:
        """Those that join are told of them."""
        super().add_servers(servers)
        told = tuple((server.address, server.public.decode()) for server in servers)
        self.welcome = replace(self.welcome, brief=msgspec.structs.replace(self.welcome.brief, servers=told))

    def invitation(self, address: str) -> str:
        where = address.removeprefix("tcp://")
        return f"others may join: shoal join {where} --key FILE, with a FILE of shoal keys invite {self.listen.file}"

    def key(self, rank: int) -> ClientCredentials:
        return ClientCredentials(self._pairs[rank], self.listen.pair.public)

    def enter(self, rank: int, size: int, session: ElasticSession | None = None) -> WorkerGroup:
        assert session is not None
        # the secrets of other workers are not this one's
        self._pairs = []
        endpoint = LinkEndpoint(f"tcp://{self.listen.host}:*", CurveKeyPair.new())
        home = (self.arena, self._host_workers)
        board = StatusBoard(self.arena.map(0, BYTES))
        return LinkedGroup(self.run, {}, rank, endpoint, board, session, home=home, servers=self.servers)

    def tick(self, board: StatusBoard) -> None:
        pass

    def close(self) -> None:
        pass
