"""A worker's listening socket, and the address book of its peers."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import zmq

from shoal.core.errors import UsageError
from shoal.core.private import check_socket_folder
from shoal.transport.authenticator import MOST_PARKED, ZapAuthenticator, decode_key
from shoal.transport.connection import AcceptedConnection
from shoal.transport.keys import CurveKeyPair
from shoal.transport.pending_connections import HANDSHAKE_SECONDS, PendingLimiter
from shoal.transport.unfinished import UnfinishedLimiter


@dataclass(frozen=True)
class BookEntry:
    """The address and key of one worker."""

    address: str
    """`tcp://10.77.0.1:7700` or `ipc:///tmp/…/0`."""
    public: bytes = b""
    host: str = ""
    """The name of its host, for error messages."""
    member: str = ""
    """Its member id; empty if members do not change."""

    @property
    def here(self) -> bool:
        """Return whether it is reached through a socket file of this host."""
        return self.address.startswith("ipc://")


Book = Mapping[int, BookEntry]


def check_book(book: Book) -> None:
    """Raise UsageError for a book that would send anything unencrypted over a network."""
    for rank, entry in book.items():
        if not entry.here and not entry.public:
            raise UsageError(f"worker {rank} at {entry.address} has no key; between hosts every worker needs one")
        if entry.here:
            check_socket_folder(Path(entry.address.removeprefix("ipc://")).parent)


def host_of(address: str) -> str:
    """Return the IP address in `tcp://10.77.0.1:7700` or `tcp://[::1]:7700`; the loopback's for a socket file."""
    if not address.startswith("tcp://"):
        return "127.0.0.1"
    return address.removeprefix("tcp://").rpartition(":")[0].strip("[]")


def book_in(folder: Path, size: int) -> dict[int, BookEntry]:
    """Make addresses for `size` workers of this host, in a folder that only the user can enter."""
    folder.mkdir(mode=0o700, exist_ok=True)
    return {rank: BookEntry(f"ipc://{folder}/{rank}") for rank in range(size)}


def _name_of(key: bytes, book: Book) -> str | None:
    """Return whose key it is. Keys are decoded only here, because handshakes are rare and turns must be short."""
    for rank, entry in book.items():
        if entry.public and decode_key(entry.public) == key:
            return entry.member or str(rank)
    return None


LARGEST_FRAME = 64 << 10
LARGEST_REPLY = 1 << 10
"""Bytes of a frame that a peer may send back on a connection to it: enough for the handshake."""
HANDSHAKE_MS = int(HANDSHAKE_SECONDS * 1000)
"""Milliseconds after which a connection that has not shown its key is closed."""
MOST_WAITING = 1024
"""Unread messages of one peer, after which ZeroMQ reads no more from its connection."""
MOST_UNSENT = 16384
"""Messages that may wait to leave for one peer: more than the chunks of the largest window."""


class LinkEndpoint:
    """Made in the training thread, handed to the communication thread, and used by that one alone."""

    def __init__(self, address: str, keys: CurveKeyPair | None = None, most_parked: int = MOST_PARKED) -> None:
        """`tcp://10.0.0.1:*` takes any free port."""
        self.keys = keys
        # libzmq encrypts and decrypts in these threads, at about 0.3 GB/s each: one would be shared by both directions.
        self.context = zmq.Context(io_threads=2)
        self._authenticator: ZapAuthenticator | None = None
        self._book: Book = {}
        self._limiter: PendingLimiter | None = None
        self.unfinished: UnfinishedLimiter | None = None
        # One PULL hears all peers; each is sent to by a PUSH of its own, whose queue holds back no other peer's.
        self.socket = self.context.socket(zmq.PULL)
        # libzmq refuses a larger frame by its announced length, before it takes memory for it.
        self.socket.setsockopt(zmq.MAXMSGSIZE, LARGEST_FRAME)
        self.socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        self.socket.setsockopt(zmq.RCVHWM, MOST_WAITING)
        if keys is not None:
            self._authenticator = ZapAuthenticator(self.context, lambda key: _name_of(key, self._book), most_parked)
            self.socket.curve_server = True
            self.socket.curve_publickey, self.socket.curve_secretkey = keys.public, keys.secret
            self.socket.setsockopt(zmq.ZAP_DOMAIN, b"shoal")
            if not address.startswith("ipc://"):
                self._limiter = PendingLimiter(self.socket)
                self.unfinished = UnfinishedLimiter(self._limiter.accepted)
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
    def handshakes(self) -> "zmq.Socket[bytes] | None":
        """Return the socket that becomes readable when a connecting peer shows a key; None without keys."""
        return self._authenticator.socket if self._authenticator is not None else None

    def answer_handshakes(self, book: Book) -> None:
        """Accept connections whose key is in the book, also those that were parked until it was."""
        if self._authenticator is not None:
            changed, self._book = self._book is not book, book
            if changed:
                self._authenticator.check_parked()
            self._authenticator.answer()

    def cut(self, connection: AcceptedConnection) -> None:
        """Shut down a connection that a peer has made to this endpoint."""
        port = self.address.rpartition(":")[2]
        if port.isdigit():
            connection.cut(int(port))

    def make_socket(self, address: str, public: bytes) -> "zmq.Socket[bytes]":
        """Return a socket that sends to a peer. The caller connects it, after attaching its monitor."""
        socket = self.context.socket(zmq.PUSH)
        # Links have windows of their own; this bounds memory for a peer that reads nothing and asks for more.
        socket.setsockopt(zmq.SNDHWM, MOST_UNSENT)
        socket.setsockopt(zmq.MAXMSGSIZE, LARGEST_REPLY)
        # Milliseconds: `GONE_REFUSALS` refusals then come within the second after which a peer counts as gone.
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        # Without it a host that drops packets holds an attempt for the kernel's own two minutes.
        socket.setsockopt(zmq.CONNECT_TIMEOUT, 3000)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        if self.keys is not None and not address.startswith("ipc://"):
            try:
                socket.curve_serverkey = public
            except zmq.ZMQError:  # an invalid key: use one that no peer has, so that the handshake fails
                socket.curve_serverkey = zmq.curve_keypair()[0]
            socket.curve_publickey, socket.curve_secretkey = self.keys.public, self.keys.secret
        return socket

    def close(self, linger_ms: int = 0) -> None:
        if self._limiter is not None:
            self._limiter.close()
        if self.unfinished is not None:
            self.unfinished.close()
        self.context.destroy(linger=linger_ms)
