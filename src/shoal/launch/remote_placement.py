"""The place of workers that take part in a run of another machine."""

from pathlib import Path

from shoal.groups.base import WorkerGroup
from shoal.groups.host_workers import HostWorkers
from shoal.groups.links import LinkedGroup
from shoal.hosts.arena import SharedArena
from shoal.hosts.status_board import BYTES, StatusBoard
from shoal.launch.engines.lease import StdinLease
from shoal.launch.placement import CoordinatorEndpoint, WorkerPlacement
from shoal.membership.credentials import ClientCredentials
from shoal.membership.elastic_session import ElasticSession
from shoal.membership.invitation import RunBrief
from shoal.membership.session import slot_of
from shoal.transport.endpoint import LinkEndpoint
from shoal.transport.keys import CurveKeyPair


class RemotePlacement(WorkerPlacement):
    """On this host, in the run of another; `own` is the address by which the others reach this one."""

    def __init__(
        self,
        brief: RunBrief,
        address: str,
        key: ClientCredentials,
        own: str,
        arena: SharedArena,
        lease: StdinLease | None = None,
    ) -> None:
        self.brief, self.address, self._key, self.own, self.arena = brief, address, key, own, arena
        self._lease = lease
        self._host_workers = HostWorkers(tuple(sorted(map(slot_of, brief.members))))
        self.servers = brief.read_servers()

    def open(self) -> None:
        pass

    def coordinator_endpoint(self, folder: Path) -> CoordinatorEndpoint:
        return CoordinatorEndpoint(self.address)

    def key(self, rank: int) -> ClientCredentials:
        return self._key

    def enter(self, rank: int, size: int, session: ElasticSession | None = None) -> WorkerGroup:
        endpoint = LinkEndpoint(f"tcp://{self.own}:*", CurveKeyPair.new())
        board, home = StatusBoard(self.arena.map(0, BYTES)), (self.arena, self._host_workers)
        return LinkedGroup(self.brief.run, {}, rank, endpoint, board, session, True, home, self.servers)

    def tick(self, board: StatusBoard) -> None:
        if self._lease is not None:
            self._lease.check()

    def close(self) -> None:
        pass
