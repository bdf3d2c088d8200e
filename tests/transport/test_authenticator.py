"""Who knocks before its key is in the book waits, and is let in with the book that has it, on the same connection."""

import zmq
from forked import soon
from meshes import WAIT

from shoal.transport.endpoint import BookEntry, LinkEndpoint
from shoal.transport.keys import CurveKeyPair
from shoal.transport.mesh import LinkMesh


class Caller:
    """Shows a key at a door."""

    def __init__(self, door: LinkEndpoint, keys: CurveKeyPair) -> None:
        assert door.keys is not None
        self.entry = BookEntry("tcp://127.0.0.1:1", keys.public, "", "w9")
        self._context = zmq.Context()
        self._way = way = self._context.socket(zmq.PUSH)
        way.setsockopt(zmq.RECONNECT_IVL, -1)
        way.curve_serverkey, way.curve_publickey, way.curve_secretkey = door.keys.public, keys.public, keys.secret
        self._monitor = way.get_monitor_socket()
        way.connect(door.address)
        self.events: list[int] = []

    def look(self) -> list[int]:
        while self._monitor.poll(5):
            self.events.append(int.from_bytes(self._monitor.recv_multipart()[0][:2], "little"))
        return self.events

    def close(self) -> None:
        self._way.disable_monitor()
        self._way.close(linger=0)
        self._context.destroy(linger=0)


def test_a_key_that_comes_into_the_book_is_let_in_on_the_connection_it_has() -> None:
    door = LinkEndpoint("tcp://127.0.0.1:*", CurveKeyPair.new())
    caller = Caller(door, CurveKeyPair.new())
    try:
        none = {0: BookEntry("tcp://127.0.0.1:1", CurveKeyPair.new().public, "", "w0")}
        assert soon(WAIT, lambda: door.let_in(none) or len(door._authenticator._parked) == 1)
        assert zmq.EVENT_HANDSHAKE_SUCCEEDED not in caller.look()
        book = {**none, 9: caller.entry}
        assert soon(WAIT, lambda: door.let_in(book) or zmq.EVENT_HANDSHAKE_SUCCEEDED in caller.look())
        assert caller.events.count(zmq.EVENT_CONNECTED) == 1
        assert zmq.EVENT_DISCONNECTED not in caller.events
        assert not door._authenticator._parked
    finally:
        caller.close()
        door.close()


def test_a_mesh_lets_in_who_knocked_before_as_soon_as_it_has_the_book() -> None:
    """The communication thread looks at its door when somebody knocks; nobody knocks twice."""
    keys = CurveKeyPair.new()
    door = LinkEndpoint("tcp://127.0.0.1:*", keys)
    mine = {0: BookEntry(door.address, keys.public, "", "w0")}
    mesh = LinkMesh("run", mine, 0, door)
    caller = Caller(door, CurveKeyPair.new())
    try:
        assert soon(WAIT, lambda: len(door._authenticator._parked) == 1)
        mesh.befriend(9, caller.entry)
        assert soon(WAIT, lambda: zmq.EVENT_HANDSHAKE_SUCCEEDED in caller.look())
        assert caller.events.count(zmq.EVENT_CONNECTED) == 1
    finally:
        caller.close()
        mesh.close()


def test_strangers_wait_in_a_room_of_their_own_size(monkeypatch) -> None:
    door = LinkEndpoint("tcp://127.0.0.1:*", CurveKeyPair.new(), most_parked=3)
    book = {0: BookEntry("tcp://127.0.0.1:1", CurveKeyPair.new().public, "", "w0")}
    strangers = [Caller(door, CurveKeyPair.new()) for _ in range(6)]
    said = []
    say = door._authenticator._reply
    monkeypatch.setattr(door._authenticator, "_reply", lambda *words: said.append(words[1]) or say(*words))
    member = None
    try:
        assert soon(WAIT, lambda: door.let_in(book) or len(said) == 3)
        assert set(said) == {b"300"}
        assert len(door._authenticator._parked) == 3
        member = Caller(door, CurveKeyPair.new())
        book = {0: member.entry}
        assert soon(WAIT, lambda: door.let_in(book) or zmq.EVENT_HANDSHAKE_SUCCEEDED in member.look())
        assert not any(zmq.EVENT_HANDSHAKE_SUCCEEDED in one.look() for one in strangers)
    finally:
        for one in [*strangers, *([member] if member else [])]:
            one.close()
        door.close()
