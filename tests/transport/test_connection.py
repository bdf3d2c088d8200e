"""A connection whose handshake was damaged, which ZeroMQ gives up for good, is begun anew, and carries what comes."""

import pytest
from forked import soon
from meshes import WAIT
from proxy import Proxy

from shoal.core.clock import now
from shoal.transport.connection import PeerConnection
from shoal.transport.endpoint import BookEntry, LinkEndpoint
from shoal.transport.keys import CurveKeyPair

GREETING = 64
"""Bytes that each side says before keys are exchanged."""


class Spoiler(Proxy):
    """Flips a bit of what a endpoint says in its first handshakes, or of what is said to it."""

    def __init__(self, target: str, times: int, place: int) -> None:
        self.left, self.place = times, place
        super().__init__(target)

    def alter(self, data: bytes) -> bytes:
        if self.left and len(data) > GREETING:  # keys, of either side
            self.left -= 1
            return data[: self.place] + bytes([data[self.place] ^ 4]) + data[self.place + 1 :]
        return data


@pytest.mark.parametrize("place", [3, 60], ids=["name", "keys"])
def test_a_handshake_that_was_damaged_is_made_again(place: int) -> None:
    keys = CurveKeyPair.new()
    endpoint, caller = LinkEndpoint("tcp://127.0.0.1:*", CurveKeyPair.new()), LinkEndpoint("tcp://127.0.0.1:*", keys)
    proxy = Spoiler(endpoint.address, times=4, place=place)
    book = {9: BookEntry("tcp://127.0.0.1:1", keys.public, "", "w9")}
    assert endpoint.keys is not None
    connection = PeerConnection(caller.make_socket(proxy.address, endpoint.keys.public), proxy.address)
    try:

        def made() -> bool:
            endpoint.answer_handshakes(book)
            return connection.look(now()) or connection.up

        assert soon(WAIT, made)
        assert proxy.left == 0, "nothing was damaged"
        connection.socket.send(b"a word")

        def came() -> bool:
            endpoint.answer_handshakes(book)
            if connection.look(now()):  # it broke once more: who sends must send again what was on its way
                connection.socket.send(b"a word")
            return bool(endpoint.socket.poll(5))

        assert soon(WAIT, came)
        assert endpoint.socket.recv() == b"a word"
    finally:
        connection.close()
        caller.close()
        endpoint.close()
        proxy.close()
