"""A member's connection to the coordinator: a DEALER that connects by itself, again and again, and never blocks.

Nothing is stored for a coordinator that is away: a beat that could not be sent is worth nothing later, and whatever
must be answered is asked again.
"""

import contextlib
from collections.abc import Iterator

import zmq

from shoal.cluster.membership.credentials import Key
from shoal.cluster.membership.envelope import LARGEST_ORDER, Envelope, Unreadable
from shoal.cluster.membership.invitation import Ask
from shoal.cluster.membership.messages import Order, Report
from shoal.core.errors import UsageError

LINGER_MS = 300
"""How long the last word (`Leave`) may take to get out."""


class Line:
    """Made and used in one thread."""

    def __init__(self, address: str, envelope: Envelope, key: Key | None, largest: int = LARGEST_ORDER) -> None:
        """`largest`: bytes of what the coordinator says."""
        if not address.startswith("ipc://") and key is None:
            raise UsageError(f"the coordinator at {address} is on a network and there is no key; give the key file")
        self.envelope = envelope
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.MAXMSGSIZE, largest)
        for option, value in _OPTIONS.items():
            self._socket.setsockopt(option, value)
        if key is not None:
            self._socket.curve_serverkey = key.coordinator
            self._socket.curve_publickey, self._socket.curve_secretkey = key.pair.public, key.pair.secret
        self._address = address

    def connect(self) -> "Line":
        """Nothing is said or heard before."""
        self._socket.connect(self._address)
        return self

    def renew(self) -> None:
        """Connect anew: after a break TCP may wait as long again as the break was, before it tries."""
        with contextlib.suppress(zmq.ZMQError):  # it was not connected
            self._socket.disconnect(self._address)
        self._socket.connect(self._address)

    def watch(self) -> "zmq.Socket[bytes]":
        """What becomes of the connection, as events of ZeroMQ: to be read, or it stops in the end. Before `connect`."""
        return self._socket.get_monitor_socket(zmq.EVENT_ALL)

    def say(self, report: Report | Ask) -> bool:
        """Whether there is somebody to hear it."""
        try:
            self._socket.send_multipart(self.envelope.seal(report), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def orders(self, seconds: float) -> Iterator[Order]:
        """What comes within `seconds`, as soon as something comes; `Mismatch` if the other side is none of ours."""
        for frames in self.letters(seconds):
            with contextlib.suppress(Unreadable):
                yield self.envelope.order(frames)

    def letters(self, seconds: float) -> Iterator[list[bytes]]:
        """The same, unread."""
        if self._socket.poll(int(seconds * 1000) + 1):
            with contextlib.suppress(zmq.Again):
                while True:
                    yield self._socket.recv_multipart(zmq.NOBLOCK)

    def close(self) -> None:
        self._context.destroy(linger=LINGER_MS)


_OPTIONS = {
    zmq.IMMEDIATE: 1,  # no connection, no message
    zmq.SNDHWM: 64,
    zmq.RCVHWM: 1024,
    zmq.RECONNECT_IVL: 50,
    zmq.RECONNECT_IVL_MAX: 500,
    zmq.CONNECT_TIMEOUT: 3_000,
    zmq.HEARTBEAT_IVL: 2_000,
    zmq.HEARTBEAT_TIMEOUT: 10_000,
}
