"""Connections of ZeroMQ sockets, to a peer's endpoint and from peers.

A connection to a peer is made again after a failed handshake, which libzmq never retries itself. Connections from a
peer are cut when it is evicted.
"""

import contextlib
import fcntl
import os
import socket
import struct
import termios
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import parse_monitor_message

_READABLE = int(zmq.POLLIN)
"""As a plain int, because `&` with an enum flag takes longer than the socket call itself."""


def is_readable(socket: "zmq.Socket[bytes]") -> bool:
    return bool(int(socket.getsockopt(zmq.EVENTS)) & _READABLE)


@dataclass(frozen=True)
class AcceptedConnection:
    """The connection that a message came on."""

    descriptor: int
    address: str

    @classmethod
    def of(cls, frame: zmq.Frame) -> "AcceptedConnection":
        return cls(int(frame.get(zmq.SRCFD)), str(frame.get("Peer-Address")))

    def cut(self, port: int) -> None:
        """Shut it down, if the descriptor still is a connection of this peer's host to our `port`."""
        if self.descriptor < 0:
            return
        # A duplicate of libzmq's descriptor: closing it closes only our copy, and shutdown acts on the connection
        # itself.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.descriptor)) as link:
            if link.getsockname()[1] == port and link.getpeername()[0] == self.address:
                link.shutdown(socket.SHUT_RDWR)


MOST_BACK = 64 << 10
"""Bytes a peer may send on a connection that this worker only writes to; a handshake takes a hundredth of them."""
_BYTES_RECEIVED = 128
"""Offset in Linux's struct tcp_info of the number of bytes received."""


def bytes_read(connection: socket.socket) -> int:
    """Return how many received bytes of a TCP connection its owner has read; 0 if the kernel does not tell."""
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    if len(info) < _BYTES_RECEIVED + 8:
        return 0
    (received,) = struct.unpack_from("=Q", info, _BYTES_RECEIVED)
    (waiting,) = struct.unpack("i", fcntl.ioctl(connection, termios.FIONREAD, b"\0" * 4))
    # Counted by the kernel are also bytes that nothing has read yet, and those take no memory of ours.
    return int(received) - int(waiting)


FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
)
PAUSE, LONGEST_PAUSE = 0.1, 3.0
"""Reconnect backoff in seconds: doubled each time."""
SILENT = 6.0
"""Seconds without an event after which a connection attempt is repeated; ZeroMQ ends a handshake after five."""


class PeerConnection:
    """The connection of `socket` to `address`, made and used in one thread."""

    def __init__(self, socket: "zmq.Socket[bytes]", address: str) -> None:
        self.socket, self.address = socket, address
        self.up = False
        """Whether it is connected, and the peer's key was right."""
        self.down: float | None = None
        """Since when it is closed, if it was open before."""
        self.refusals = 0
        """How often a connection was refused since then."""
        self.abused = False
        """Whether the peer has sent much on it: nothing reads here, so libzmq would keep it all in memory."""
        self._fd = -1
        self._pause = PAUSE
        self._told: float | None = None
        self._due: float | None = None
        self._monitor = socket.get_monitor_socket()
        self._connect()

    def look(self, now: float) -> bool:
        """Handle the events since the last call; return whether the connection has just been made (again)."""
        made = False
        with contextlib.suppress(zmq.Again):
            while is_readable(self._monitor):
                said = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
                if said["event"] == zmq.EVENT_CONNECTED:
                    self._fd = int(said["value"])
                made |= self._happened(said["event"], now)
        # The first look starts the clock of SILENT, so that a slow start of this thread does not count as silence.
        self._told = now if self._told is None else self._told
        if self.up and self.address.startswith("tcp://"):
            self._check_back()
        if not self.up and self._due is None and now - self._told > SILENT:
            self._due = now
        if self._due is not None and now >= self._due:
            self._begin_anew(now)
        return made

    def _check_back(self) -> None:
        """Shut the connection down if the peer fills this worker's memory through it."""
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._fd)) as link:
            if link.family == socket.AF_INET and _is_at(link, self.address) and bytes_read(link) > MOST_BACK:
                self.abused = True
                link.shutdown(socket.SHUT_RDWR)

    def _happened(self, event: int, now: float) -> bool:
        self._told = now
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.up, self.down, self._due, self._pause = True, None, None, PAUSE
        elif event == zmq.EVENT_DISCONNECTED and self.up:
            self.up, self.down, self.refusals = False, now, 0
        # libzmq retries refused connections itself; counting them is how a dead process is told from a slow one
        # (`gone`).
        elif event == zmq.EVENT_CONNECT_RETRIED:
            self.refusals += 1
        elif event in FAILED:
            # libzmq gives up after a failed handshake, so this side must connect again; the peer may list our key by
            # then.
            self.up, self._due = False, now + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return event == zmq.EVENT_HANDSHAKE_SUCCEEDED

    def _begin_anew(self, now: float) -> None:
        self._told, self._due = now, None
        with contextlib.suppress(zmq.ZMQError):  # raised if ZeroMQ has dropped the connection already
            self.socket.disconnect(self.address)
        self._connect()

    def _connect(self) -> None:
        with contextlib.suppress(zmq.ZMQError):  # an unreachable address: membership will give the peer up
            self.socket.connect(self.address)

    def close(self) -> None:
        """Close it; messages that still wait in it are lost."""
        self.socket.disable_monitor()
        self._monitor.close(linger=0)
        self.socket.close(linger=0)


def _is_at(link: socket.socket, address: str) -> bool:
    """Return whether the socket still leads to `address`: its descriptor may have been reused."""
    host, port = link.getpeername()[:2]
    return address == f"tcp://{host}:{port}"
