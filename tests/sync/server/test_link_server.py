"""A server process between hosts: members it was told of are served under their keys, and nobody else."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import pytest

from shoal.core.clock import Deadline
from shoal.groups.links import SERVER_RANK
from shoal.launch.service_channel import MemberAccused, ServiceView
from shoal.launch.services import RunService, ServiceProcesses, ServiceSeat
from shoal.membership.protocol import MemberInfo
from shoal.sync.server.connection import DECLARE_PORT, NUMBER, SERVED_PORT, shard_port
from shoal.sync.server.messages import (
    ROWS,
    DeclareRequest,
    OpenRequest,
    PullRequest,
    PushRequest,
    ReadRowsRequest,
    SumRequest,
    TableShape,
    TensorSize,
    decode_reply,
    encode,
)
from shoal.sync.server.process import serve_shards
from shoal.transport.endpoint import BookEntry, LinkEndpoint
from shoal.transport.keys import CurveKeyPair
from shoal.transport.mesh import LinkMesh

OWN, REMOTE = "w0.0", "w1.1"
SERVER = "server 0"


class ServedMember:
    """A member's side, without a run."""

    def __init__(self, slot: int, name: str, server: BookEntry) -> None:
        endpoint = LinkEndpoint("tcp://127.0.0.1:*", CurveKeyPair.new())
        assert endpoint.keys is not None
        self.name, self.remote = name, name != OWN
        self.info = MemberInfo(endpoint.address, endpoint.keys.public.decode(), "here", self.remote)
        self.mesh = LinkMesh("run", {}, slot, endpoint)
        self.mesh.loop.exchange.silence = None
        self.mesh.set_peers({SERVER_RANK: server})
        self.replies: SimpleQueue[Any] = SimpleQueue()
        self.mesh.messenger.serve(SERVED_PORT, lambda m: self.replies.put(m), 64, threaded=False, senders=[SERVER])

    def ask(self, request: Any, array: np.ndarray | None = None, port: str = shard_port(0), number: int = 1) -> None:
        head = encode(request) if port == DECLARE_PORT else NUMBER.pack(number) + encode(request)
        self.mesh.messenger.push(SERVER, port, head, [] if array is None else [array])

    def hear(self, seconds: float = 20.0) -> tuple[Any, list[Any]]:
        message = self.replies.get(timeout=seconds)
        return decode_reply(message.head[NUMBER.size :], SERVER), message.arrays

    def close(self) -> None:
        self.mesh.close()


class ServedRun:
    def __init__(self, services: ServiceProcesses) -> None:
        self.services = services
        self.members = [ServedMember(slot, name, services.book[0]) for slot, name in enumerate((OWN, REMOTE))]

    def tell(self, generation: int = 1) -> None:
        infos = tuple(member.info for member in self.members)
        self.services.tell(ServiceView(generation, tuple(member.name for member in self.members), infos))

    def accused(self, seconds: float = 20.0) -> list[MemberAccused]:
        deadline = Deadline.after(seconds)
        while not (found := self.services.take_accused()) and not deadline.expired:
            threading.Event().wait(0.02)
        return found


@contextmanager
def served() -> Iterator[ServedRun]:
    services = ServiceProcesses((RunService(SERVER, serve_shards),))
    services.open(lambda number, _: ServiceSeat(SERVER, number, "tcp://127.0.0.1:*", "run", CurveKeyPair.new()))
    run = ServedRun(services)
    try:
        yield run
    finally:
        for member in run.members:
            member.close()
        services.close()


def request(number: int) -> SumRequest:
    return SumRequest(1, 0, 0, number, [OWN, REMOTE], "float32")


SIZES = DeclareRequest(0, (TensorSize("float32", 40_000),))


def test_members_meet_at_a_server_that_was_told_of_them() -> None:
    """What a remote member sends before the run's own has said what will come waits at its sender."""
    with served() as run:
        own, remote = run.members
        remote.ask(request(1), np.full(10_000, 2.0, np.float32))
        run.tell()
        own.ask(SIZES, port=DECLARE_PORT)
        own.ask(request(1), np.full(10_000, 1.0, np.float32))
        for member in run.members:
            reply, (total,) = member.hear()
            assert type(reply).__name__ == "SumReply"
            assert set(total.view(np.float32)) == {3.0}


def test_a_member_that_nobody_told_of_is_not_heard() -> None:
    with served() as run:
        own, remote = run.members
        run.services.tell(ServiceView(1, (OWN,), (own.info,)))
        own.ask(SIZES, port=DECLARE_PORT)
        remote.ask(OpenRequest(0, "add", {}, None, 1, [OWN]), np.zeros(10_000, np.float32))
        own.ask(OpenRequest(0, "add", {}, None, 1, [OWN]), np.ones(10_000, np.float32))
        _, (values,) = own.hear()
        assert set(values.view(np.float32)) == {1.0}
        with pytest.raises(Empty):
            remote.hear(0.5)


def test_more_than_was_declared_does_not_leave_its_sender() -> None:
    """The limit comes with the credit; a peer that ignores it is a matter of links (tests/transport)."""
    with served() as run:
        run.tell()
        own, remote = run.members
        own.ask(SIZES, port=DECLARE_PORT)
        head = NUMBER.pack(1) + encode(request(1))
        ticket = remote.mesh.messenger.push(SERVER, shard_port(0), head, [np.zeros(10_000_000, np.float32)])
        assert ticket.done.wait(20.0)
        assert "takes at most" in str(ticket.error)


def test_a_remote_member_that_asks_what_none_asks_is_named_to_the_launcher() -> None:
    with served() as run:
        run.tell()
        own, remote = run.members
        own.ask(SIZES, port=DECLARE_PORT)
        remote.ask(PullRequest(3, 0))
        (accused,) = run.accused()
        assert accused.member == REMOTE
        assert "which nobody has opened" in accused.reason


def test_noise_under_a_good_key_is_named_too() -> None:
    with served() as run:
        run.tell()
        own, remote = run.members
        own.ask(SIZES, port=DECLARE_PORT)
        remote.mesh.messenger.push(SERVER, shard_port(0), b"noise")
        (accused,) = run.accused()
        assert accused.member == REMOTE


def test_a_remote_member_that_names_a_row_that_is_none_costs_only_itself() -> None:
    """Of a table: the others' rows stay as they are, and a checkpoint is read by the run's own workers alone."""
    with served() as run:
        run.tell()
        own, remote = run.members
        own.ask(DeclareRequest(0, (TensorSize(ROWS, 1 << 20),)), port=DECLARE_PORT)
        table = TableShape(100, 2, 0, 1, 0, 0.0)
        for member in run.members:
            member.ask(OpenRequest(0, "add", {}, None, 1, [OWN, REMOTE], table=table), np.zeros(0, np.float32))
            reply, _ = member.hear()
            assert type(reply).__name__ == "RoundReply", reply
        for row, wanted in ((100, "FailedReply"), (7, "PushReply")):
            member = remote if row == 100 else own
            head = NUMBER.pack(1) + encode(PushRequest(0))
            arrays = [np.array([row]), np.ones(2, np.float32)]
            member.mesh.messenger.push(SERVER, shard_port(0), head, arrays)
            assert type(member.hear()[0]).__name__ == wanted
        assert run.accused()[0].member == REMOTE
        remote.ask(ReadRowsRequest(0, 0, 100))
        reply, _ = remote.hear()
        assert "only the run's own workers do" in reply.text
        own.ask(PullRequest(1, 0), np.array([6, 7, 8]))
        _, (values,) = own.hear()
        assert values.view(np.float32).tolist() == [0, 0, 1, 1, 0, 0]
