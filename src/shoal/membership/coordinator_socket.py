"""The coordinator's socket: one ROUTER that admits allowed keys only."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import zmq
from zmq.utils import z85

from shoal.core.clock import now
from shoal.core.errors import UsageError
from shoal.core.private import check_socket_folder
from shoal.membership.credentials import ServerCredentials
from shoal.membership.envelope import LARGEST_REPORT, Frame
from shoal.transport.authenticator import ZapAuthenticator
from shoal.transport.connection import is_readable
from shoal.transport.pending_connections import HANDSHAKE_SECONDS, PendingLimiter
from shoal.transport.unfinished import UnfinishedLimiter

MOST_AT_ONCE = 256
"""Messages taken in between two ticks: a flood must not keep the clock from being looked at."""
MOST_WAITING = 1024


@dataclass(frozen=True)
class CoordinatorMessage:
    """A message, and its sender."""

    sender: bytes
    """The connection, for an answer."""
    key: str
    """The public key that the sender proved to have; empty if keys are not used."""
    frames: list[Frame]
    peer: tuple[str, int] | None = None
    """Where the connection comes from, over TCP and once it is known."""


class CoordinatorSocket:
    """Used by one thread. `address` is the bound address: `tcp://10.0.0.1:*` takes any free port."""

    def __init__(
        self,
        address: str,
        lock: ServerCredentials | None,
        largest: int = LARGEST_REPORT,
        most_unsent: int = MOST_WAITING,
    ) -> None:
        """`largest`: bytes of a frame that is taken in. `most_unsent`: messages that wait for one receiver; 0: all."""
        check_address(address, lock)
        self._lock = lock
        self._context = zmq.Context(io_threads=1)  # of its own: `close` destroys it, with all its sockets
        self._authenticator: ZapAuthenticator | None = None
        self._limiter: PendingLimiter | None = None
        self._unfinished: UnfinishedLimiter | None = None
        self._poller = zmq.Poller()
        # A ROUTER names the connection that a message came on, which is where its answer goes.
        self._socket = self._context.socket(zmq.ROUTER)
        for option, value in _OPTIONS.items():
            self._socket.setsockopt(option, value)
        self._socket.setsockopt(zmq.MAXMSGSIZE, largest)
        self._socket.setsockopt(zmq.SNDHWM, most_unsent)
        if lock is not None:
            # Unknown keys are refused at once instead of parked: a user waits, and may have given the wrong file.
            self._authenticator = ZapAuthenticator(self._context, self._identify, most_parked=0)
            self._poller.register(self._authenticator.socket, zmq.POLLIN)
            self._socket.curve_server = True
            self._socket.curve_publickey, self._socket.curve_secretkey = lock.pair.public, lock.pair.secret
            self._socket.setsockopt(zmq.ZAP_DOMAIN, b"shoal")
            if address.startswith("tcp://"):
                self._limiter = PendingLimiter(self._socket)
                self._unfinished = UnfinishedLimiter(self._limiter.accepted)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise UsageError(f"cannot listen at {address}: {error.strerror}; is another run there?") from None
        self._poller.register(self._socket, zmq.POLLIN)
        self.address = self._socket.get_string(zmq.LAST_ENDPOINT)
        if self._limiter is not None:
            self._limiter.start()

    def watch(self, descriptor: int) -> None:
        """End `wait` also when this descriptor is readable."""
        self._poller.register(descriptor, zmq.POLLIN)

    def unwatch(self, descriptor: int) -> None:
        self._poller.unregister(descriptor)

    def wait(self, seconds: float) -> None:
        """Wait until something arrives, at most this long."""
        self._poller.poll(int(seconds * 1000))
        if self._authenticator is not None:
            self._authenticator.answer()
        if self._unfinished is not None:
            self._unfinished.look(now(), drained=not is_readable(self._socket))

    def messages(self) -> Iterator[CoordinatorMessage]:
        """Yield the messages that have arrived, at most `MOST_AT_ONCE`."""
        with contextlib.suppress(zmq.Again):
            for _ in range(MOST_AT_ONCE):
                sender, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
                key = frames[-1].get("User-Id") if frames and self._authenticator is not None else ""
                peer = None
                if frames and self._unfinished is not None and self._limiter is not None:
                    # libzmq's own number; the limiter knows whose connection it is.
                    descriptor = int(frames[-1].get(zmq.SRCFD))
                    self._unfinished.heard(descriptor)
                    peer = self._limiter.peer(descriptor)
                yield CoordinatorMessage(sender.bytes, str(key), [frame.buffer for frame in frames], peer)

    def connected(self) -> set[tuple[str, int]]:
        """Where connections over TCP come from, as of now: a peer that was killed is missing within a moment."""
        return set(self._limiter.accepted().values()) if self._limiter is not None else set()

    def send(self, to: bytes, frames: Sequence[Frame | bytearray]) -> None:
        """Send without waiting. A receiver that does not read loses messages; the protocol repeats all that matter."""
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart([to, *frames], zmq.NOBLOCK)

    def _identify(self, key: bytes) -> str | None:
        """Return the key itself, in Z85, if it is allowed: members are known by it from then on."""
        shown = z85.encode(key)
        return shown.decode() if self._lock is not None and self._lock.admits(shown) else None

    def close(self) -> None:
        """Close the socket, after a moment in which the last messages may leave."""
        if self._limiter is not None:
            self._limiter.close()
        if self._unfinished is not None:
            self._unfinished.close()
        # Milliseconds: a refusal, or the news of the run's end, may still be in the queue.
        self._context.destroy(linger=200)


_OPTIONS = {
    zmq.HANDSHAKE_IVL: int(HANDSHAKE_SECONDS * 1000),
    zmq.RCVHWM: MOST_WAITING,
    zmq.HEARTBEAT_IVL: 2_000,
    zmq.HEARTBEAT_TIMEOUT: 10_000,  # closes the connections of a host that is gone, which TCP would keep
}


def check_address(address: str, lock: ServerCredentials | None) -> None:
    """Raise UsageError for an address that a stranger could reach without a key."""
    if address.startswith("ipc://"):
        check_socket_folder(Path(address.removeprefix("ipc://")).parent)
    elif not address.startswith("tcp://"):
        raise UsageError(f"{address!r} is no address; use tcp://HOST:PORT or ipc://FILE")
    elif lock is None:
        raise UsageError(f"{address} can be reached by others and there is no key; make one with shoal keys new")
