"""Messages that are never finished: whoever sends one is closed before it fills anybody's memory.

libzmq itself sends a message when it is whole, so a relay holds the rest of one back.
"""

import contextlib
import socket
import struct
from collections.abc import Iterator

import zmq
from forked import soon
from meshes import WAIT, meshes, numbers, total
from proxy import Proxy
from strangers import GREETING, stranger

from shoal.core.clock import now
from shoal.membership.coordinator_socket import CoordinatorSocket
from shoal.membership.credentials import ClientCredentials, ServerCredentials
from shoal.transport.connection import MOST_BACK, PeerConnection, bytes_read
from shoal.transport.keys import CurveKeyPair
from shoal.transport.messages import CHUNK
from shoal.transport.unfinished import EVERY, MOST_OF_ALL, MOST_OF_ONE, UnfinishedLimiter

PART = bytes(CHUNK)


class Stalling(Proxy):
    """Passes `left` bytes on, once there is such a number, and then nothing."""

    left: int | None = None

    def alter(self, data: bytes) -> bytes:
        if self.left is not None:
            self.left -= len(data)
            if self.left <= 0:
                self.held.set()
        return data


def looked(limiter: UnfinishedLimiter | None) -> None:
    """What came before the messages that were heard is forgiven."""
    assert limiter is not None
    assert soon(WAIT, lambda: not limiter._heard)


def test_a_peer_that_never_finishes_a_message_is_suspected_and_nobody_else() -> None:
    proxies: list[Stalling] = []

    def through(address: str) -> str:
        proxies.append(Stalling(address))
        return proxies[-1].address

    with meshes(3, through=through) as made:
        total(made, numbers(3, 1000))  # so that each connection is known by a message
        looked(made[0].loop.endpoint.unfinished)
        proxies[0].left = 2 * MOST_OF_ONE
        liar = made[2].loop  # the one before worker 0 in the ring
        liar.call(lambda: liar.peers[0].chunk_socket.send_multipart([PART] * (3 * MOST_OF_ONE // len(PART))))
        assert soon(WAIT, lambda: bool(made[0].loop.suspects))
        assert list(made[0].loop.suspects) == [2]
        assert "does not end" in made[0].loop.suspects[2]
        assert made[0].loop.is_alive()
        proxies[0].held.clear()
    for proxy in proxies:
        proxy.close()


def test_large_messages_that_end_are_no_offence() -> None:
    with meshes(2) as made:
        for mesh in made:
            assert mesh.loop.endpoint.unfinished is not None
            mesh.loop.endpoint.unfinished._due = 0.0
        for _ in range(5):
            total(made, numbers(2, 1_000_000))
        assert not made[0].loop.suspects
        assert not made[1].loop.suspects


def test_the_coordinator_closes_a_member_that_never_finishes_a_message() -> None:
    pair, member = CurveKeyPair.new(), CurveKeyPair.new()
    endpoint = CoordinatorSocket("tcp://127.0.0.1:*", ServerCredentials(pair, {member.public: 1}))
    proxy = Stalling(endpoint.address)
    try:
        with stranger(proxy.address, ClientCredentials(member, pair.public)) as liar:
            assert endpoint._limiter is not None
            liar.say(b"a", b"word")
            assert soon(WAIT, lambda: bool(endpoint.wait(0.02) or list(endpoint.messages())))
            assert endpoint._unfinished is not None
            assert soon(WAIT, lambda: bool(endpoint.wait(0.02) or not endpoint._unfinished._heard))
            proxy.left = 2 * MOST_OF_ONE
            before = endpoint._limiter.accepted()
            liar.say(*[bytes(4000)] * 1000)

            def closed() -> bool:
                endpoint.wait(0.02)
                assert not list(endpoint.messages())
                assert endpoint._limiter is not None
                return not before.keys() & endpoint._limiter.accepted().keys()

            assert soon(WAIT, closed)
    finally:
        proxy.close()
        endpoint.close()


@contextlib.contextmanager
def connections(count: int) -> Iterator[tuple[list[socket.socket], list[socket.socket]]]:
    listener = socket.create_server(("127.0.0.1", 0))
    near = [socket.create_connection(listener.getsockname()) for _ in range(count)]
    far = [listener.accept()[0] for _ in range(count)]
    try:
        yield near, far
    finally:
        for one in (*near, *far, listener):
            one.close()


def test_many_small_rests_together_are_too_much() -> None:
    """Of many connections each is below the limit; the largest go until the sum is small enough."""
    share = MOST_OF_ONE - 4096
    count = MOST_OF_ALL // share + 2
    with connections(count) as (near, far):
        limiter = UnfinishedLimiter(lambda: {end.fileno(): end.getpeername() for end in far})
        sizes = [share + number for number in range(count)]
        for one, other, size in zip(near, far, sizes, strict=True):
            left = size
            while left:
                left -= one.send(bytes(min(left, 1 << 16)))
                other.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while other.recv(1 << 20):
                        pass
        assert soon(WAIT, lambda: [bytes_read(other) + pending(other) for other in far] == sizes)
        assert limiter.look(0.0, drained=True) == [], "one look is not enough: a message may just be coming in"
        limiter.heard(far[-1].fileno())
        assert limiter.look(EVERY, drained=False) == [], "not all that waited was read"
        closed = limiter.look(EVERY, drained=True)
        assert [fd for fd, _ in closed] == [end.fileno() for end in (far[-2],)], "the largest of those not heard"
        limiter.close()


def pending(connection: socket.socket) -> int:
    with contextlib.suppress(BlockingIOError):
        while connection.recv(1 << 20):
            pass
    return 0


def is_cut(connection: socket.socket) -> bool:
    try:
        connection.sendall(bytes(200))
    except OSError:
        return True
    return False


def test_a_peer_that_sends_where_it_may_only_listen_is_found_out() -> None:
    """libzmq keeps what comes back on a socket that only sends."""
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 4) + b"PULL"
    listener, context = socket.create_server(("127.0.0.1", 0)), zmq.Context()
    address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
    connection = PeerConnection(context.socket(zmq.PUSH), address)
    try:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(GREETING + b"\x04" + bytes([len(ready)]) + ready)
            assert soon(WAIT, lambda: connection.look(now()) or connection.up)
            assert not connection.abused
            for _ in range(2 * MOST_BACK // 200):
                peer.sendall(b"\x01\xc8" + bytes(200))  # a part, and more to follow
            assert soon(WAIT, lambda: connection.look(now()) or connection.abused)
            assert soon(WAIT, lambda: is_cut(peer))
    finally:
        connection.close()
        listener.close()
        context.destroy(linger=0)
