"""Bounds the connections that have not shown a key yet, at a ZeroMQ socket that listens on TCP.

    libzmq's thread: accept ── ACCEPTED(fd) ──> monitor ──> this thread: too many? shutdown(the oldest stranger)
                     <────────────── end of file: closes it, DISCONNECTED(fd) ──────────┘

libzmq accepts whatever connects and waits for a handshake, so a stranger who opens connections and stays silent would
use up this process's descriptors, and the script's next `open()` would fail. libzmq has no option for that. But it
tells a monitor which descriptor it has accepted; a `shutdown` there makes it close the connection itself.

The number of descriptors is bounded even if this thread gets no time: libzmq waits when 1,000 events are unread, and
accepts nothing meanwhile.
"""

import contextlib
import os
import socket
import struct
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

import zmq
from zmq.utils.monitor import parse_monitor_message

from shoal.core.clock import now
from shoal.core.descriptors import raise_descriptor_limit

MOST_PENDING = 256
"""Connections to one socket that have not shown a key."""
MOST_PER_ADDRESS = 128
"""The same for one address: 64 workers of one machine make 126 connections to a worker at the same moment."""
HANDSHAKE_SECONDS = 5.0
"""libzmq closes a connection that has not shown its key after this many seconds (ZMQ_HANDSHAKE_IVL)."""
BACKLOG = 1024
"""Connections the kernel queues until libzmq accepts them; a client that is dropped tries again after a second."""
MOST_AT_ONCE = 512
"""Events that are read before connections are counted."""
CLOSE_SECONDS = 5.0

_GREETING, _WELCOME = 64, 170
"""Bytes that a server of ZMTP 3 and CURVE sends before it knows a client's key (RFC 23, RFC 26)."""
_BYTES_ACKED = 120
"""Offset in Linux's struct tcp_info of the number of bytes the other side has acknowledged."""
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED
_ADDRESS = "inproc://shoal.pending"


class HandshakeStage(IntEnum):
    """How far a connection's handshake has come, judged by what this side has sent on it."""

    unknown = 0
    """It has shown nothing."""
    invited = 1
    """It knows our public key: otherwise it would have got no WELCOME."""
    done = 2
    """It has shown a key that was accepted."""


@dataclass
class PendingConnection:
    """A connection that libzmq has accepted."""

    fd: int
    """libzmq's own descriptor: it may be closed and reused at any moment, which `peer` shows."""
    peer: tuple[str, int]
    accepted: float
    stage: HandshakeStage = HandshakeStage.unknown


class DescriptorView:
    """Looks at libzmq's sockets through a descriptor of our own, which libzmq cannot close or reuse meanwhile.

    It is kept open, so that it is available even when the process has run out of descriptors.
    """

    def __init__(self) -> None:
        self._nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._own = os.dup(self._nothing)

    @contextlib.contextmanager
    def of(self, fd: int) -> Iterator[socket.socket]:
        """Return the socket behind a descriptor; raise OSError if there is none."""
        os.dup2(fd, self._own, inheritable=False)
        try:
            here = socket.socket(fileno=self._own)
            try:
                yield here
            finally:
                # The descriptor is ours to reuse; closing the socket object would close it.
                here.detach()
        finally:
            os.dup2(self._nothing, self._own, inheritable=False)

    def close(self) -> None:
        os.close(self._own)
        os.close(self._nothing)


class PendingLimiter(threading.Thread):
    """Made before the socket is bound, started after that, and closed before the socket is."""

    def __init__(
        self, watched: "zmq.Socket[bytes]", most: int = MOST_PENDING, most_per_address: int = MOST_PER_ADDRESS
    ) -> None:
        super().__init__(name="shoal-pending", daemon=True)
        self.most, self.most_per_address = most, most_per_address
        self.evicted = 0
        """How many connections were closed to make room."""
        self._watched = watched
        self._port = 0
        self._pending: dict[int, PendingConnection] = {}
        self._accepted: dict[int, tuple[str, int]] = {}
        self._view = DescriptorView()
        watched.setsockopt(zmq.BACKLOG, BACKLOG)
        watched.monitor(_ADDRESS, int(_EVENTS))
        self._monitor = watched.context.socket(zmq.PAIR)
        # Few unread events, because libzmq must stop accepting when this thread gets no time (see above).
        self._monitor.setsockopt(zmq.RCVHWM, 1)
        self._monitor.connect(_ADDRESS)

    def start(self) -> None:
        """Start the thread, once the socket is bound."""
        raise_descriptor_limit()
        self._port = int(self._watched.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0").rpartition(":")[2])
        super().start()

    def run(self) -> None:
        going = True
        try:
            while going:
                self._monitor.poll()
                going = self._read_events()
                self._enforce()
        except zmq.ZMQError:
            pass  # the context was destroyed without closing this limiter first
        finally:
            self._end()

    def _end(self) -> None:
        self._monitor.close(linger=0)
        self._view.close()

    def close(self) -> None:
        """End the thread; called by the socket's owner. All events are read, or libzmq would wait for them to be."""
        if self.is_alive():
            self._watched.disable_monitor()
            self.join(CLOSE_SECONDS)
        elif not self.ident:  # it was never started
            self._watched.disable_monitor()
            self._end()

    def accepted(self) -> dict[int, tuple[str, int]]:
        """Return the connected addresses by libzmq's descriptor; any thread may call this."""
        return self._accepted.copy()

    def peer(self, fd: int) -> tuple[str, int] | None:
        """Return where the connection with this descriptor comes from; any thread may call this."""
        return self._accepted.get(fd)

    def _read_events(self) -> bool:
        """Note new and closed connections; return False if no more events will come."""
        with contextlib.suppress(zmq.Again):
            for _ in range(MOST_AT_ONCE):
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
                kind, fd = int(event["event"]), int(event["value"])
                if kind == zmq.EVENT_MONITOR_STOPPED:
                    return False
                # Also before EVENT_ACCEPTED: the descriptor was reused, so what it stood for before is gone.
                self._pending.pop(fd, None)
                self._accepted.pop(fd, None)
                if kind == zmq.EVENT_ACCEPTED and (peer := self._peer(fd)) is not None:
                    self._pending[fd] = PendingConnection(fd, peer, now())
                    self._accepted[fd] = peer
        return True

    def _enforce(self) -> None:
        if not self._too_many():
            return
        # Looked at only when there are too many: reading each one's state costs three system calls.
        for connection in list(self._pending.values()):
            self._look_at(connection)
        for connection in choose_evictions(self._pending.values(), self.most, self.most_per_address):
            self._evict(connection)

    def _too_many(self) -> bool:
        if len(self._pending) > min(self.most, self.most_per_address):
            counts = Counter(connection.peer[0] for connection in self._pending.values())
            return len(self._pending) > self.most or max(counts.values()) > self.most_per_address
        return False

    def _look_at(self, connection: PendingConnection) -> None:
        """Update the state of its handshake; a connection that has shown a key no longer counts."""
        with contextlib.suppress(OSError), self._view.of(connection.fd) as here:
            connection.stage = stage_of(here)
        # An older connection has shown its key, because libzmq would have closed it otherwise.
        if connection.stage == HandshakeStage.done or now() - connection.accepted > 2 * HANDSHAKE_SECONDS:
            self._pending.pop(connection.fd, None)

    def _evict(self, connection: PendingConnection) -> None:
        self._pending.pop(connection.fd, None)
        with contextlib.suppress(OSError), self._view.of(connection.fd) as here:
            if self._is_ours(here) and here.getpeername() == connection.peer:
                here.shutdown(socket.SHUT_RDWR)
                self.evicted += 1

    def _peer(self, fd: int) -> tuple[str, int] | None:
        with contextlib.suppress(OSError), self._view.of(fd) as here:  # it may be closed already
            if self._is_ours(here):
                host, port = here.getpeername()[:2]
                return str(host), int(port)
        return None

    def _is_ours(self, here: socket.socket) -> bool:
        """Return whether it was accepted at the watched socket: by now the descriptor may be something else."""
        return here.family == socket.AF_INET and here.getsockname()[1] == self._port


def choose_evictions(pending: Iterable[PendingConnection], most: int, most_per_address: int) -> list[PendingConnection]:
    """Choose connections to close so that the limits hold: from the address with most, least advanced and oldest
    first."""
    by_address: dict[str, list[PendingConnection]] = defaultdict(list)
    for connection in sorted(pending, key=lambda each: (-each.stage, -each.accepted)):
        by_address[connection.peer[0]].append(connection)  # the next to go is the last
    chosen: list[PendingConnection] = []
    for connections in by_address.values():
        while len(connections) > most_per_address:
            chosen.append(connections.pop())
    left = sum(map(len, by_address.values()))
    return chosen + [max(by_address.values(), key=len).pop() for _ in range(left - most)]


def stage_of(connection: socket.socket) -> HandshakeStage:
    """Return how far the handshake has come, by the bytes that this side has sent and the other has acknowledged."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    if len(info) < _BYTES_ACKED + 8:  # a kernel before 4.1
        return HandshakeStage.unknown
    (acked,) = struct.unpack_from("=Q", info, _BYTES_ACKED)
    if acked > _GREETING + _WELCOME:
        return HandshakeStage.done
    return HandshakeStage.invited if acked > _GREETING else HandshakeStage.unknown
