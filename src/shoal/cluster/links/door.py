"""Where a worker is reached: one socket that only receives, and a porter who lets in the keys of the book alone.

Every worker has one door and, for each peer, two sockets of its own that only send (see `peer.py`), so that no
direction waits for the other. A stranger gets no further than ZeroMQ's handshake, in which nobody holds more than
64 KiB for it; what it says reaches no code of ours. A door on one host is a file in a folder that is the user's alone.
"""

import zmq

from shoal.cluster.links.book import Book
from shoal.cluster.links.connection import Connection
from shoal.cluster.links.keys import Keys
from shoal.cluster.links.porter import Porter
from shoal.cluster.pending import HANDSHAKE_SECONDS, PendingLimiter
from shoal.core.errors import UsageError

LARGEST_FRAME = 64 << 10
HANDSHAKE_MS = int(HANDSHAKE_SECONDS * 1000)
"""A connection that has not shown its key after that is closed."""
MOST_WAITING = 1024
"""Messages of one peer that wait to be read; then its connection is left to itself, until they are."""
MOST_UNSENT = 16384
"""Messages for one peer that wait to leave: more than the largest window has chunks."""


class Door:
    """Made in the training thread, handed to the communication thread, and used by that one alone."""

    def __init__(self, address: str, keys: Keys | None = None) -> None:
        """`tcp://10.0.0.1:*` takes any free port."""
        self.keys = keys
        self.context = zmq.Context(io_threads=2)
        self._porter: Porter | None = None
        self._limiter: PendingLimiter | None = None
        self.socket = self.context.socket(zmq.PULL)
        self.socket.setsockopt(zmq.MAXMSGSIZE, LARGEST_FRAME)
        self.socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        self.socket.setsockopt(zmq.RCVHWM, MOST_WAITING)
        if keys is not None:
            self._porter = Porter(self.context)
            self.socket.curve_server = True
            self.socket.curve_publickey, self.socket.curve_secretkey = keys.public, keys.secret
            self.socket.setsockopt(zmq.ZAP_DOMAIN, b"shoal")
            if not address.startswith("ipc://"):
                self._limiter = PendingLimiter(self.socket)
        elif not address.startswith("ipc://"):
            self.close()
            raise UsageError(f"{address} can be reached by others and there is no key; make one with shoal keys new")
        try:
            self.socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise UsageError(f"cannot listen at {address}: {error.strerror}; is another run there?") from None
        self.address = str(self.socket.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")
        if self._limiter is not None:
            self._limiter.start()

    @property
    def guard(self) -> "zmq.Socket[bytes] | None":
        """Where something comes in when somebody shows a key."""
        return self._porter.socket if self._porter is not None else None

    def let_in(self, book: Book) -> None:
        """Answer all who have shown a key since the last time: welcome, if it is a key of the book."""
        if self._porter is not None:
            self._porter.answer(book)

    def cut(self, connection: Connection) -> None:
        """End a connection that a peer has made to this door."""
        port = self.address.rpartition(":")[2]
        if port.isdigit():
            connection.cut(int(port))

    def way_to(self, address: str, public: bytes) -> "zmq.Socket[bytes]":
        """A socket that sends to a peer; connected by the caller, once it listens to what becomes of it."""
        socket = self.context.socket(zmq.PUSH)
        # links have windows of their own; this is for a peer that takes nothing and asks for more
        socket.setsockopt(zmq.SNDHWM, MOST_UNSENT)
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, 3000)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        if self.keys is not None and not address.startswith("ipc://"):
            try:
                socket.curve_serverkey = public
            except zmq.ZMQError:  # no key at all: one that nobody has, so that nothing is ever said there
                socket.curve_serverkey = zmq.curve_keypair()[0]
            socket.curve_publickey, socket.curve_secretkey = self.keys.public, self.keys.secret
        return socket

    def close(self, linger_ms: int = 0) -> None:
        if self._limiter is not None:
            self._limiter.close()
        self.context.destroy(linger=linger_ms)
