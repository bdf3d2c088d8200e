"""Who knocks before its key is in the book waits, and is let in with the book that has it, on the same connection."""

import zmq
from forked import soon
from meshes import WAIT

from shoal.transport.endpoint import BookEntry, LinkEndpoint
from shoal.transport.keys import CurveKeyPair
from shoal.transport.mesh import LinkMesh


class Caller:
    """Shows a key at a endpoint."""

    def __init__(self, endpoint: LinkEndpoint, keys: CurveKeyPair) -> None:
        assert endpoint.keys is not None
        self.entry = BookEntry("tcp://127.0.0.1:1", keys.public, "", "w9")
        self._context = zmq.Context()
        self._way = way = self._context.socket(zmq.PUSH)
        way.setsockopt(zmq.RECONNECT_IVL, -1)
        way.curve_serverkey, way.curve_publickey, way.curve_secretkey = endpoint.keys.public, keys.public, keys.secret
        self._monitor = way.get_monitor_socket()
        way.connect(endpoint.address)
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
    endpoint = LinkEndpoint("tcp://127.0.0.1:*", CurveKeyPair.new())
    caller = Caller(endpoint, CurveKeyPair.new())
    try:
        none = {0: BookEntry("tcp://127.0.0.1:1", CurveKeyPair.new().public, "", "w0")}
        assert soon(WAIT, lambda: endpoint.answer_handshakes(none) or len(endpoint._authenticator._parked) == 1)
        assert zmq.EVENT_HANDSHAKE_SUCCEEDED not in caller.look()
        book = {**none, 9: caller.entry}
        assert soon(WAIT, lambda: endpoint.answer_handshakes(book) or zmq.EVENT_HANDSHAKE_SUCCEEDED in caller.look())
        assert caller.events.count(zmq.EVENT_CONNECTED) == 1
        assert zmq.EVENT_DISCONNECTED not in caller.events
        assert not endpoint._authenticator._parked
    finally:
        caller.close()
        endpoint.close()


def test_a_mesh_lets_in_who_knocked_before_as_soon_as_it_has_the_book() -> None:
    """The communication thread looks at its endpoint when somebody knocks; nobody knocks twice."""
    keys = CurveKeyPair.new()
    endpoint = LinkEndpoint("tcp://127.0.0.1:*", keys)
    mine = {0: BookEntry(endpoint.address, keys.public, "", "w0")}
    mesh = LinkMesh("run", mine, 0, endpoint)
    caller = Caller(endpoint, CurveKeyPair.new())
    try:
        assert soon(WAIT, lambda: len(endpoint._authenticator._parked) == 1)
        mesh.add_peer(9, caller.entry)
        assert soon(WAIT, lambda: zmq.EVENT_HANDSHAKE_SUCCEEDED in caller.look())
        assert caller.events.count(zmq.EVENT_CONNECTED) == 1
    finally:
        caller.close()
        mesh.close()


def test_strangers_wait_in_a_room_of_their_own_size(monkeypatch) -> None:
    endpoint = LinkEndpoint("tcp://127.0.0.1:*", CurveKeyPair.new(), most_parked=3)
    book = {0: BookEntry("tcp://127.0.0.1:1", CurveKeyPair.new().public, "", "w0")}
    strangers = [Caller(endpoint, CurveKeyPair.new()) for _ in range(6)]
    said = []
    say = endpoint._authenticator._reply
    monkeypatch.setattr(endpoint._authenticator, "_reply", lambda *words: said.append(words[1]) or say(*words))
    member = None
    try:
        assert soon(WAIT, lambda: endpoint.answer_handshakes(book) or len(said) == 3)
        assert set(said) == {b"300"}
        assert len(endpoint._authenticator._parked) == 3
        member = Caller(endpoint, CurveKeyPair.new())
        book = {0: member.entry}
        assert soon(WAIT, lambda: endpoint.answer_handshakes(book) or zmq.EVENT_HANDSHAKE_SUCCEEDED in member.look())
        assert not any(zmq.EVENT_HANDSHAKE_SUCCEEDED in one.look() for one in strangers)
    finally:
        for one in [*strangers, *([member] if member else [])]:
            one.close()
        endpoint.close()
