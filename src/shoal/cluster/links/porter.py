"""Who is let in at a door: keys of the book, at once or as soon as they are in it, and nobody else.

A member may be told of a view before the peer it knocks at. To be sent away it would have to be told so, and then it
never comes again; without an answer ZeroMQ keeps it until the handshake's time is over, which the whole run would wait
for. So whoever is not in the book yet waits here, and is let in with the book that has its key.
"""

import contextlib
from collections import deque
from dataclasses import dataclass

import zmq
from zmq.utils import z85

from shoal.cluster.links.book import Book
from shoal.cluster.links.waits import waits

MOST = 128
"""Strangers that wait at once; the one that has waited longest is sent away for the next."""
_ADDRESS = "inproc://zeromq.zap.01"  # where libzmq asks, by its RFC 27
_WELCOME, _NOT_NOW = b"200", b"300"


@dataclass(frozen=True)
class Knock:
    """Somebody has shown a key, and libzmq waits for a word about it."""

    way: bytes
    number: bytes
    key: bytes


class Porter:
    """Used by the thread that has the door."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.bind(_ADDRESS)  # inside this process
        self._waiting: deque[Knock] = deque()
        self._book: Book | None = None

    def answer(self, book: Book) -> None:
        """Look who has come since the last time, and at all who wait if there is another book."""
        if self._book is not book:
            self._book = book
            waiting, self._waiting = self._waiting, deque()
            for knock in waiting:
                self._look_at(knock, book)
        with contextlib.suppress(zmq.Again):
            while waits(self.socket):
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
                # way, nothing, version, number, domain, address, name, mechanism, credentials
                if len(parts) == 9 and parts[7] == b"CURVE":
                    self._look_at(Knock(parts[0], parts[3], parts[8]), book)

    def _look_at(self, knock: Knock, book: Book) -> None:
        name = _owner(knock.key, book)
        if name is not None:
            self._say(knock, _WELCOME, name)
            return
        self._waiting.append(knock)
        if len(self._waiting) > MOST:
            self._say(self._waiting.popleft(), _NOT_NOW, "")

    def _say(self, knock: Knock, verdict: bytes, name: str) -> None:
        self.socket.send_multipart([knock.way, b"", b"1.0", knock.number, verdict, b"", name.encode(), b""])


def _owner(key: bytes, book: Book) -> str | None:
    """Whose key it is; keys of the book are decoded only when somebody knocks, for a turn of the loop is shorter."""
    for rank, entry in book.items():
        if entry.public and _decoded(entry.public) == key:
            return entry.member or str(rank)
    return None


def _decoded(public: bytes) -> bytes:
    try:
        return bytes(z85.decode(public))
    except Exception:  # noqa: BLE001  (what is no key opens nothing)
        return b""
