"""Hosts of several workers, as threads, at two servers in this process: any of them may be killed at any moment.

In step i worker w adds one at a place of its own, (i, w), of two parameters, each on a server of its own. So the values
at the servers say of every change how often it counts there.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from shoal.core.errors import Evicted
from shoal.groups.base import WorkerGroup
from shoal.hosts.status_board import StatusBoard
from shoal.launch.service_channel import ServiceView
from shoal.membership.protocol import MemberInfo
from shoal.membership.session import FixedSession, member_name
from shoal.membership.view import MembershipView
from shoal.sync.exchange.none import NoExchange
from shoal.sync.server.connection import NUMBER, ServerConnection
from shoal.sync.server.host import ShardHost
from shoal.sync.server.host_steps import HostStepsSynchronizer
from shoal.sync.server.messages import DeclareRequest, ShardReply, encode
from shoal.sync.server.request_guard import RequestGuard
from shoal.sync.server.server_pace import ServerPace
from shoal.sync.synchronizer import EqualWeights, Part

SERVERS, SECONDS = 2, 20.0


class KilledWorker(BaseException):
    """Where a thread ends as a process does under kill -9."""


class FixedShares(EqualWeights):
    """A power of two, so that sums are exact."""

    def weight(self) -> float:
        return 0.25


class WatchedSession(FixedSession):
    """The newest view is the world's; the view in which a round began stays."""

    elastic = True

    def __init__(self, world: "HostWorld", rank: int) -> None:
        super().__init__(rank, len(world.view))
        self._world, self.view = world, world.view

    @property
    def newest_view(self) -> MembershipView:
        return self._world.view


class HostGroupOfThreads(WorkerGroup):
    """The workers of one host share an object's memory."""

    def __init__(self, world: "HostWorld", rank: int) -> None:
        self._world, self.slot, self.seconds = world, rank, SECONDS
        self.session, self.board = WatchedSession(world, rank), StatusBoard.private()
        self.places = [slot for slot, host in enumerate(world.hosts) if host == world.hosts[rank]]
        self._used = 0

    @property
    def copy_host(self) -> Any:
        return self

    def hosts_of_members(self) -> dict[str, str]:
        return {member_name(slot): str(host) for slot, host in enumerate(self._world.hosts)}

    def region(self, size: int) -> memoryview:
        self._used += 1
        key = (self._world.hosts[self.slot], self._used)
        return memoryview(self._world.memory.setdefault(key, bytearray(size)))

    def gather(self, *what: Any, **more: Any) -> Any:
        raise NotImplementedError

    gather_inside = broadcast = close = gather


class ThreadConnection(ServerConnection):
    """To hosts of shards behind locks, which answer in the thread that asks, or that frees what waited."""

    def __init__(self, world: "HostWorld", member: str, board: StatusBoard) -> None:
        super().__init__(member, board, SECONDS)
        self._world, self._came = world, threading.Event()
        self.values_sent = 0

    def __len__(self) -> int:
        return SERVERS

    def poll(self, server: int, milliseconds: int = 0) -> None:
        if self._came.wait(milliseconds / 1000):
            self._came.clear()

    def _declare(self, server: int, request: DeclareRequest) -> None:
        with self._world.locks[server]:
            self._world.servers[server].declare(self.member, request)

    def _transmit(self, server: int, channel: int, head: bytes, arrays: Sequence[Any]) -> None:
        self._world.may_die(self.member)
        (number,) = NUMBER.unpack_from(head)
        copies = [memoryview(np.array(array)).cast("B") for array in arrays]
        with self._world.locks[server]:
            if self.member in self._world.servers[server]._guard.view.members:  # type: ignore[union-attr]
                self._world.servers[server].handle(self.member, number, head[NUMBER.size :], copies)

    def hear(self, server: int, number: int, reply: ShardReply, arrays: Sequence[Any]) -> None:
        copies = [memoryview(np.array(array)).cast("B") for array in arrays]
        self._take(server, number, encode(reply), copies)
        self._came.set()


class ThreadWorker:
    """One worker of a host."""

    def __init__(self, world: "HostWorld", rank: int) -> None:
        self.world, self.rank, self.made = world, rank, 0
        self.group = HostGroupOfThreads(world, rank)
        self.member = self.group.session.member
        self.values = [torch.nn.Parameter(torch.zeros(world.steps * len(world.hosts))) for _ in range(SERVERS)]
        self.optimizer = torch.optim.SGD(self.values, lr=1.0)
        self.servers = ThreadConnection(world, self.member, self.group.board)
        exchange: Any = NoExchange()
        self.sync = HostStepsSynchronizer(exchange, self.servers, world.pace, 10**6, group=self.group)

    def open(self) -> None:
        part = Part(["a", "b"], self.values, self.group.session, weights=FixedShares(self.group.session))
        part.optimizers = [self.optimizer]
        self.sync.open(part)
        publish = self.sync._host.publish

        def publish_or_die(*what: Any) -> None:
            self.world.may_die(self.member)
            publish(*what)
            self.world.may_die(self.member)

        self.sync._host.publish = publish_or_die  # type: ignore[method-assign]

    def step(self) -> None:
        self.sync.before_step(self.optimizer)
        with torch.no_grad():
            for parameter in self.values:
                parameter[self.made * len(self.world.hosts) + self.rank] += 4.0
        self.made += 1
        self.sync.after_step(self.optimizer)


class HostWorld:
    """`hosts`: of each worker, on which it is. `dies`: a member, and after how many of its messages and flags."""

    def __init__(
        self, hosts: Sequence[int], steps: int, bound: int | None = None, dies: tuple[str, int] | None = None
    ) -> None:
        self.hosts, self.steps = list(hosts), steps
        self.pace = ServerPace(bound, by_host=True)
        self.view = MembershipView(1, tuple(member_name(slot) for slot in range(len(hosts))))
        self.memory: dict[tuple[int, int], bytearray] = {}
        self.locks = [threading.RLock() for _ in range(SERVERS)]
        self._victim, self._moments = dies or ("", 0)
        self.servers = [
            ShardHost(lambda m, *reply, s=s: self.workers[m].servers.hear(s, *reply), RequestGuard())  # type: ignore[misc]
            for s in range(SERVERS)
        ]
        self._tell()
        self.workers = {member: ThreadWorker(self, rank) for rank, member in enumerate(self.view.members)}
        for worker in self.workers.values():
            worker.open()

    @property
    def moments(self) -> int:
        """Messages and flags that are left."""
        return self._moments

    def _tell(self) -> None:
        """As the launcher does."""
        infos = tuple(MemberInfo(host_group=f"host {self.hosts[int(m[1:-2])]}") for m in self.view.members)
        for lock, server in zip(self.locks, self.servers, strict=True):
            with lock:
                server.follow(ServiceView(self.view.generation, self.view.members, infos))

    def may_die(self, member: str) -> None:
        if member == self._victim:
            self._moments -= 1
            if self._moments < 0:
                raise KilledWorker

    def lose(self, member: str) -> None:
        stays = tuple(each for each in self.view.members if each != member)
        self.view = MembershipView(self.view.generation + 1, stays)
        self._tell()

    def each(self, act: Callable[[ThreadWorker], None]) -> None:
        """Let all living workers do this at once; who is killed is lost to the others."""
        errors: list[BaseException] = []

        def run(worker: ThreadWorker) -> None:
            try:
                act(worker)
            except KilledWorker:
                self.lose(worker.member)
            except Evicted:
                errors.append(AssertionError(f"{worker.member} was evicted"))
            except BaseException as error:  # noqa: BLE001 (raised again below)
                errors.append(error)

        threads = [
            threading.Thread(target=run, args=(self.workers[member],), daemon=True) for member in self.view.members
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * SECONDS)
            assert not thread.is_alive(), "a worker waits for ever"
        if errors:
            raise errors[0]

    def train(self) -> None:
        """All their steps, then a round's end; `met`: the view whose members have come so far."""
        self.each(lambda worker: [worker.step() for _ in range(self.steps)] and worker.sync.leave_round())  # type: ignore[func-returns-value]
        self.met = self.view
        self.each(lambda worker: worker.sync._begin_round(self.met))

    def counts(self, server: int) -> torch.Tensor:
        """How often each change counts at a server: steps x workers."""
        values = self.servers[server]._shards[0].shard.state.values
        return torch.from_numpy(values).view(self.steps, len(self.hosts))
