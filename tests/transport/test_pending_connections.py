"""Connections that have shown no key: how many may wait, and which of them is closed for the next."""

import contextlib
import socket
from collections import Counter
from collections.abc import Iterator

import pytest
import zmq
from forked import soon

from shoal.transport.pending_connections import (
    HandshakeStage,
    PendingConnection,
    PendingLimiter,
    choose_evictions,
    stage_of,
)

WAIT = 30.0


def waiting(address: str, *stages: int, first: int = 0) -> list[PendingConnection]:
    """Connections of one address, the oldest first."""
    return [
        PendingConnection(first + n, (address, 1000 + n), float(first + n), HandshakeStage(stage))
        for n, stage in enumerate(stages)
    ]


@pytest.mark.parametrize(("most", "per_address", "gone"), [(9, 9, 0), (9, 3, 2), (4, 9, 1), (4, 3, 2), (2, 1, 4)])
def test_the_limits_hold(most: int, per_address: int, gone: int) -> None:
    pending = [*waiting("a", 0, 0, 0, 0, 0)]
    chosen = choose_evictions(pending, most, per_address)
    assert [connection.fd for connection in chosen] == list(range(gone)), "the oldest goes first"


def test_the_address_with_most_gives_way() -> None:
    few, many = waiting("few", 0, 0), waiting("many", *[0] * 20, first=10)
    chosen = choose_evictions([*few, *many], 8, 100)
    assert Counter(connection.peer[0] for connection in chosen) == {"many": 14}


def test_whoever_knows_the_public_key_outlasts_whoever_has_shown_nothing() -> None:
    pending = waiting("a", 1, 0, 1, 0)
    assert [connection.fd for connection in choose_evictions(pending, 1, 9)] == [1, 3, 0]


@contextlib.contextmanager
def listening(most: int, per_address: int) -> Iterator[tuple[PendingLimiter, "zmq.Socket[bytes]", bytes]]:
    context = zmq.Context()
    endpoint = context.socket(zmq.ROUTER)
    endpoint.curve_server = True
    public, endpoint.curve_secretkey = zmq.curve_keypair()
    limiter = PendingLimiter(endpoint, most, per_address)
    endpoint.bind("tcp://127.0.0.1:*")
    limiter.start()
    try:
        yield limiter, endpoint, public
    finally:
        limiter.close()
        assert not limiter.is_alive()
        context.destroy(linger=0)


def connect(address: str, source: str = "127.0.0.1") -> socket.socket:
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host, int(port)), WAIT, (source, 0))


def is_closed(caller: socket.socket) -> bool:
    caller.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while caller.recv(100):
            pass
        return True
    return False


def test_strangers_are_closed_and_whoever_has_shown_a_key_is_not() -> None:
    with listening(6, 4) as (limiter, endpoint, public), contextlib.ExitStack() as stack:
        address = endpoint.get_string(zmq.LAST_ENDPOINT)
        members = [endpoint.context.socket(zmq.DEALER) for _ in range(12)]
        for member in members:
            member.curve_serverkey = public
            member.curve_publickey, member.curve_secretkey = zmq.curve_keypair()
            member.connect(address)
            member.send(b"here")
            assert endpoint.poll(int(WAIT * 1000))
            endpoint.recv_multipart()
        near = [stack.enter_context(connect(address)) for _ in range(40)]
        far = [stack.enter_context(connect(address, "127.0.0.2")) for _ in range(3)]
        assert soon(WAIT, lambda: sum(map(is_closed, [*near, *far])) == 43 - 6), "more, or fewer, are left than may be"
        assert not any(map(is_closed, far)), "another address has to give way before"
        assert all(not is_closed(caller) for caller in near[-3:]), "the newest are left"
        assert limiter.evicted == 43 - 6, "somebody was closed who has shown a key"


def test_the_stage_is_read_from_the_connection() -> None:
    context = zmq.Context()
    endpoint = context.socket(zmq.ROUTER)
    endpoint.curve_server = True
    public, endpoint.curve_secretkey = zmq.curve_keypair()
    monitor = endpoint.get_monitor_socket(zmq.EVENT_ACCEPTED)
    endpoint.bind("tcp://127.0.0.1:*")
    address = endpoint.get_string(zmq.LAST_ENDPOINT)

    def accepted() -> socket.socket:
        assert monitor.poll(int(WAIT * 1000))
        return socket.socket(fileno=int.from_bytes(monitor.recv_multipart()[0][2:6], "little"))

    with connect(address) as silent:
        here = accepted()
        assert silent.recv(10)
        assert soon(WAIT, lambda: stage_of(here) == HandshakeStage.unknown)
        here.detach()
        member = context.socket(zmq.DEALER)
        member.curve_serverkey = public
        member.curve_publickey, member.curve_secretkey = zmq.curve_keypair()
        member.connect(address)
        here = accepted()
        assert soon(WAIT, lambda: stage_of(here) == HandshakeStage.done)
        here.detach()
    endpoint.disable_monitor()
    monitor.close(linger=0)
    context.destroy(linger=0)
