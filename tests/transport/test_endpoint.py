"""Strangers at the endpoint: they change nothing, hold nothing, and the run goes on."""

import contextlib
import os
import socket
from pathlib import Path

import pytest
import zmq
from forked import soon
from meshes import WAIT, meshes, numbers, total
from strangers import NOISE, resident

from shoal.core.errors import UsageError
from shoal.transport.endpoint import BookEntry, LinkEndpoint, check_book
from shoal.transport.keys import CurveKeyPair
from shoal.transport.messages import ChunkHeader, LinkClosed, encode


def port_of(mesh) -> int:
    return int(mesh.loop.endpoint.address.rpartition(":")[2])


@pytest.mark.parametrize("data", NOISE.values(), ids=NOISE)
def test_garbage_changes_nothing(data: bytes) -> None:
    with meshes(2) as made:
        before = resident(os.getpid())
        callers = [socket.create_connection(("127.0.0.1", port_of(made[0])), timeout=WAIT) for _ in range(20)]
        for caller in callers:
            with contextlib.suppress(OSError):  # thrown out already
                caller.sendall(data)
        tensors = numbers(2, 1000)
        results = total(made, tensors)
        assert all((result == sum(tensors)).all() for result in results)
        assert resident(os.getpid()) - before < 32 << 20
        assert made[0].loop.receiver.refused == 0, "nothing of it came as far as our decoder"
        for caller in callers:
            caller.close()


@pytest.mark.parametrize("knows", ["nothing", pytest.param("the public key", marks=pytest.mark.soak)])
def test_a_key_that_is_not_in_the_book_is_not_let_in(knows: str) -> None:
    with meshes(2) as made:
        context, stranger = zmq.Context(), CurveKeyPair.new()
        way = context.socket(zmq.PUSH)
        monitor = way.get_monitor_socket()
        if knows == "the public key":
            way.curve_serverkey = made[0].loop.book[0].public
            way.curve_publickey, way.curve_secretkey = stranger.public, stranger.secret
        way.connect(made[0].loop.endpoint.address)
        way.send(encode(LinkClosed("run", 0, 0, 1, 0, "ended", 1)))
        seen = set()

        def refused() -> bool:
            while monitor.poll(10):
                seen.add(int.from_bytes(monitor.recv_multipart()[0][:2], "little"))
            return bool(seen & {zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED})

        assert soon(WAIT, refused)
        assert zmq.EVENT_HANDSHAKE_SUCCEEDED not in seen
        tensors = numbers(2, 1000)
        assert (total(made, tensors)[0] == sum(tensors)).all()
        assert made[0].link(1).bye is None
        assert made[0].loop.receiver.refused == 0
        context.destroy(linger=0)


def test_a_member_cannot_speak_in_anothers_name() -> None:
    with meshes(3) as made:
        loop = made[1].loop
        loop.call(lambda: loop.peers[0].chunk_socket.send(encode(LinkClosed("run", 0, 0, 2, 0, "ended", -1))))
        assert soon(WAIT, lambda: made[0].loop.receiver.refused == 1)
        assert made[0].link(2).bye is None


@pytest.mark.parametrize("change", ["head", "length", "dtype", "checksum", "parts"])
def test_a_members_wrong_frames_are_dropped_and_its_right_ones_count(change: str) -> None:
    with meshes(2) as made:
        loop = made[1].loop
        fields = {"dtype": "float32", "shape": (10,), "crc": 0}
        fields |= {"length": {"shape": (11,)}, "dtype": {"dtype": "object"}, "checksum": {"crc": 7}}.get(change, {})
        chunk = ChunkHeader("run", 0, 0, 1, 0, 1, 0, "ring", 0, 0, 4000, 1, *fields.values())
        head = b"\xc1" if change == "head" else encode(chunk)
        parts = [head, *[bytes(range(40))] * (3 if change == "parts" else 1)]
        loop.call(lambda: loop.peers[0].chunk_socket.send_multipart(parts))
        assert soon(WAIT, lambda: made[0].loop.receiver.refused == 1)
        tensors = numbers(2, 1000)
        assert (total(made, tensors)[0] == sum(tensors)).all()


def test_no_door_without_a_key(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no key"):
        LinkEndpoint("tcp://127.0.0.1:*")
    with pytest.raises(UsageError, match="every worker needs one"):
        check_book({0: BookEntry("tcp://127.0.0.1:1")})
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(UsageError, match="0700"):
        check_book({0: BookEntry(f"ipc://{tmp_path}/open/0")})


def test_a_door_that_is_taken_is_said() -> None:
    first = LinkEndpoint("tcp://127.0.0.1:*", CurveKeyPair.new())
    with pytest.raises(UsageError, match="cannot listen at"):
        LinkEndpoint(first.address, CurveKeyPair.new())
    first.close()
