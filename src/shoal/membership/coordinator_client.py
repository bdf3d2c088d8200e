"""A member's connection to the coordinator: never blocks, and reconnects with a backoff of ten round trips, doubling,
between 1 and 16 s.
"""

import contextlib
import os
from collections.abc import Iterator

import zmq

from shoal.core.errors import UsageError
from shoal.membership.credentials import ClientCredentials
from shoal.membership.envelope import LARGEST_ORDER, MessageEnvelope, UnreadableMessage
from shoal.membership.invitation import RunQuery
from shoal.membership.protocol import Order, Report

FIRST = 2.0
"""Seconds before the first reconnection, while nothing is known of the link."""
SHORTEST, LONGEST = 1.0, 16.0
ROUND_TRIPS = 10


class ReconnectBackoff:
    """When to reconnect; the first connection was begun at `now`."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._usual = self._patience = FIRST

    def heard(self, now: float) -> None:
        """Note that the coordinator was heard."""
        self._since, self._patience = now, self._usual

    def round_trip(self, seconds: float) -> None:
        """Note how long an answer took."""
        # An answer sets the patience back: backoff is for a coordinator that is away, not for a slow link.
        self._usual = self._patience = min(max(SHORTEST, ROUND_TRIPS * seconds), LONGEST)

    def due(self, now: float) -> bool:
        """Return whether to reconnect now; if so, the next wait begins."""
        if now - self._since <= self._patience:
            return False
        self._since, self._patience = now, min(2 * self._patience, LONGEST)
        return True


LINGER_MS = 300
"""Milliseconds the last message (`LeaveRequest`) may take to leave."""


class CoordinatorClient:
    """Made and used in one thread."""

    def __init__(
        self, address: str, envelope: MessageEnvelope, key: ClientCredentials | None, largest: int = LARGEST_ORDER
    ) -> None:
        """`largest`: bytes of the coordinator's longest message."""
        if not address.startswith("ipc://") and key is None:
            raise UsageError(f"the coordinator at {address} is on a network and there is no key; give the key file")
        self.envelope = envelope
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.DEALER)
        # The coordinator is trusted with decisions, not with this worker's memory.
        self._socket.setsockopt(zmq.MAXMSGSIZE, largest)
        for option, value in _OPTIONS.items():
            self._socket.setsockopt(option, value)
        if key is not None:
            self._socket.curve_serverkey = key.coordinator
            self._socket.curve_publickey, self._socket.curve_secretkey = key.pair.public, key.pair.secret
        self._address = address
        self._wakes = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wakes, zmq.POLLIN)

    def wake(self) -> None:
        """End a wait in `messages`, from any thread, because there is something to send."""
        os.eventfd_write(self._wakes, 1)

    def connect(self) -> "CoordinatorClient":
        """Connect; nothing is sent or received before."""
        self._socket.connect(self._address)
        return self

    def renew(self) -> None:
        """Reconnect. After an outage TCP may wait as long again before it retries, so a new connection is faster."""
        with contextlib.suppress(zmq.ZMQError):  # it was not connected
            self._socket.disconnect(self._address)
        self._socket.connect(self._address)

    def watch(self) -> "zmq.Socket[bytes]":
        """Return a socket of ZeroMQ events about the connection. Call it before `connect`, and keep reading it."""
        return self._socket.get_monitor_socket(zmq.EVENT_ALL)

    def say(self, report: Report | RunQuery) -> bool:
        """Send a message if there is a connection; return whether there is one."""
        try:
            self._socket.send_multipart(self.envelope.seal(report), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def orders(self, seconds: float) -> Iterator[Order]:
        """Yield the orders that arrive within `seconds`; raise ProtocolMismatch for another protocol or run."""
        for frames in self.messages(seconds):
            with contextlib.suppress(UnreadableMessage):
                yield self.envelope.order(frames)

    def messages(self, seconds: float) -> Iterator[list[bytes]]:
        """Yield the messages that arrive within `seconds`, not decoded."""
        ready = dict(self._poller.poll(int(seconds * 1000) + 1))
        if self._wakes in ready:
            os.eventfd_read(self._wakes)
        if self._socket in ready:
            with contextlib.suppress(zmq.Again):
                while True:
                    yield self._socket.recv_multipart(zmq.NOBLOCK)

    def close(self) -> None:
        self._context.destroy(linger=LINGER_MS)
        os.close(self._wakes)


_OPTIONS = {
    zmq.IMMEDIATE: 1,  # without a connection `say` fails, instead of queueing what is outdated when it leaves
    zmq.SNDHWM: 64,
    zmq.RCVHWM: 1024,
    zmq.RECONNECT_IVL: 50,
    zmq.RECONNECT_IVL_MAX: 500,
    zmq.CONNECT_TIMEOUT: 3_000,
    zmq.HEARTBEAT_IVL: 2_000,
    zmq.HEARTBEAT_TIMEOUT: 10_000,
}
