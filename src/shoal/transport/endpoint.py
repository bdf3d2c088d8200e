"""Where a worker is reached: the address book, the ZAP authenticator that checks keys, and the listening socket."""

import contextlib
import os
import stat
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import zmq
from zmq.utils import z85

from shoal.core.errors import UsageError
from shoal.transport.connection import AcceptedConnection, is_readable
from shoal.transport.keys import CurveKeyPair
from shoal.transport.pending_connections import HANDSHAKE_SECONDS, PendingLimiter
from shoal.transport.unfinished import UnfinishedLimiter


@dataclass(frozen=True)
class BookEntry:
    """One worker."""

    address: str
    """`tcp://10.77.0.1:7700` or `ipc:///tmp/…/0`."""
    public: bytes = b""
    host: str = ""
    """The name of its host, for messages."""
    member: str = ""
    """Its id, where the members of the run may change: who takes a lost one's place has another."""

    @property
    def here(self) -> bool:
        """Whether it is reached through a file of this host."""
        return self.address.startswith("ipc://")


Book = Mapping[int, BookEntry]


def check_book(book: Book) -> None:
    """Refuse what would send anything in the clear over a network."""
    for rank, entry in book.items():
        if not entry.here and not entry.public:
            raise UsageError(f"worker {rank} at {entry.address} has no key; between hosts every worker needs one")
        if entry.here:
            _private(Path(entry.address.removeprefix("ipc://")).parent)


def book_in(folder: Path, size: int) -> dict[int, BookEntry]:
    """Addresses for `size` workers of this host, in a folder made for the user alone."""
    folder.mkdir(mode=0o700, exist_ok=True)
    return {rank: BookEntry(f"ipc://{folder}/{rank}") for rank in range(size)}


def _private(folder: Path) -> None:
    status = os.stat(folder)
    if stat.S_IMODE(status.st_mode) & 0o077 or status.st_uid != os.geteuid():
        raise UsageError(f"{str(folder)!r} is open to others; sockets need a folder of mode 0700")


MOST = 128
"""Strangers that wait at once; the one that has waited longest is sent away for the next."""
_ADDRESS = "inproc://zeromq.zap.01"  # where libzmq asks, by its RFC 27
_WELCOME, _NOT_NOW = b"200", b"300"


@dataclass(frozen=True)
class AuthRequest:
    """Somebody has shown a key, and libzmq waits for a word about it."""

    way: bytes
    number: bytes
    key: bytes


class ZapAuthenticator:
    """Used by the thread that has the door."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.bind(_ADDRESS)  # inside this process
        self._waiting: deque[AuthRequest] = deque()
        self._book: Book | None = None

    def answer(self, book: Book) -> None:
        """Look who has come since the last time, and at all who wait if there is another book."""
        if self._book is not book:
            self._book = book
            waiting, self._waiting = self._waiting, deque()
            for knock in waiting:
                self._look_at(knock, book)
        with contextlib.suppress(zmq.Again):
            while is_readable(self.socket):
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
                # way, nothing, version, number, domain, address, name, mechanism, credentials
                if len(parts) == 9 and parts[7] == b"CURVE":
                    self._look_at(AuthRequest(parts[0], parts[3], parts[8]), book)

    def _look_at(self, knock: AuthRequest, book: Book) -> None:
        name = _owner(knock.key, book)
        if name is not None:
            self._say(knock, _WELCOME, name)
            return
        self._waiting.append(knock)
        if len(self._waiting) > MOST:
            self._say(self._waiting.popleft(), _NOT_NOW, "")

    def _say(self, knock: AuthRequest, verdict: bytes, name: str) -> None:
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


LARGEST_FRAME = 64 << 10
LARGEST_REPLY = 1 << 10
"""Bytes of a frame that a peer may send on the way back: those of the handshake."""
HANDSHAKE_MS = int(HANDSHAKE_SECONDS * 1000)
"""A connection that has not shown its key after that is closed."""
MOST_WAITING = 1024
"""Messages of one peer that wait to be read; then its connection is left to itself, until they are."""
MOST_UNSENT = 16384
"""Messages for one peer that wait to leave: more than the largest window has chunks."""


class LinkEndpoint:
    """Made in the training thread, handed to the communication thread, and used by that one alone."""

    def __init__(self, address: str, keys: CurveKeyPair | None = None) -> None:
        """`tcp://10.0.0.1:*` takes any free port."""
        self.keys = keys
        self.context = zmq.Context(io_threads=2)
        self._porter: ZapAuthenticator | None = None
        self._limiter: PendingLimiter | None = None
        self.unfinished: UnfinishedLimiter | None = None
        self.socket = self.context.socket(zmq.PULL)
        self.socket.setsockopt(zmq.MAXMSGSIZE, LARGEST_FRAME)
        self.socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        self.socket.setsockopt(zmq.RCVHWM, MOST_WAITING)
        if keys is not None:
            self._porter = ZapAuthenticator(self.context)
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
    def guard(self) -> "zmq.Socket[bytes] | None":
        """Where something comes in when somebody shows a key."""
        return self._porter.socket if self._porter is not None else None

    def let_in(self, book: Book) -> None:
        """Answer all who have shown a key since the last time: welcome, if it is a key of the book."""
        if self._porter is not None:
            self._porter.answer(book)

    def cut(self, connection: AcceptedConnection) -> None:
        """End a connection that a peer has made to this door."""
        port = self.address.rpartition(":")[2]
        if port.isdigit():
            connection.cut(int(port))

    def way_to(self, address: str, public: bytes) -> "zmq.Socket[bytes]":
        """A socket that sends to a peer; connected by the caller, once it listens to what becomes of it."""
        socket = self.context.socket(zmq.PUSH)
        # links have windows of their own; this is for a peer that takes nothing and asks for more
        socket.setsockopt(zmq.SNDHWM, MOST_UNSENT)
        socket.setsockopt(zmq.MAXMSGSIZE, LARGEST_REPLY)
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
        if self.unfinished is not None:
            self.unfinished.close()
        self.context.destroy(linger=linger_ms)
