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
"""Seconds of a call as long as nothing is known of the link."""
SHORTEST, LONGEST = 1.0, 16.0
ROUND_TRIPS = 10


class ReconnectBackoff:
    """Of one connection that was called at `now`."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._usual = self._patience = FIRST

    def heard(self, now: float) -> None:
        """The coordinator has said something."""
        self._since, self._patience = now, self._usual

    def round_trip(self, seconds: float) -> None:
        """What it has answered took so long."""
        self._usual = self._patience = min(max(SHORTEST, ROUND_TRIPS * seconds), LONGEST)

    def due(self, now: float) -> bool:
        """Whether to call again; then that call has begun."""
        if now - self._since <= self._patience:
            return False
        self._since, self._patience = now, min(2 * self._patience, LONGEST)
        return True


LINGER_MS = 300
"""How long the last word (`Leave`) may take to get out."""


class CoordinatorClient:
    """Made and used in one thread."""

    def __init__(
        self, address: str, envelope: MessageEnvelope, key: ClientCredentials | None, largest: int = LARGEST_ORDER
    ) -> None:
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
        self._wakes = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wakes, zmq.POLLIN)

    def wake(self) -> None:
        """End a wait in `messages`, from any thread: there is something to say."""
        os.eventfd_write(self._wakes, 1)

    def connect(self) -> "CoordinatorClient":
        """Nothing is said or heard before."""
        self._socket.connect(self._address)
        return self

    def renew(self) -> None:
        """Reconnect: after a break TCP may wait as long again as the break was before it retries."""
        with contextlib.suppress(zmq.ZMQError):  # it was not connected
            self._socket.disconnect(self._address)
        self._socket.connect(self._address)

    def watch(self) -> "zmq.Socket[bytes]":
        """What becomes of the connection, as events of ZeroMQ: to be read, or it stops in the end. Before `connect`."""
        return self._socket.get_monitor_socket(zmq.EVENT_ALL)

    def say(self, report: Report | RunQuery) -> bool:
        """Whether there is somebody to hear it."""
        try:
            self._socket.send_multipart(self.envelope.seal(report), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def orders(self, seconds: float) -> Iterator[Order]:
        """Messages that arrive within `seconds`, returned with the first; `Mismatch` for another protocol."""
        for frames in self.messages(seconds):
            with contextlib.suppress(UnreadableMessage):
                yield self.envelope.order(frames)

    def messages(self, seconds: float) -> Iterator[list[bytes]]:
        """The same, unread."""
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
    zmq.IMMEDIATE: 1,  # no connection, no message
    zmq.SNDHWM: 64,
    zmq.RCVHWM: 1024,
    zmq.RECONNECT_IVL: 50,
    zmq.RECONNECT_IVL_MAX: 500,
    zmq.CONNECT_TIMEOUT: 3_000,
    zmq.HEARTBEAT_IVL: 2_000,
    zmq.HEARTBEAT_TIMEOUT: 10_000,
}
