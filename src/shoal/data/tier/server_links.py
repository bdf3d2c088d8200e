"""A worker's connections to the data servers: a socket each, which ZeroMQ's thread fills while the worker computes.

A connection that breaks is made again by ZeroMQ; what was under way on it is asked again elsewhere (`fetching`), so
nothing is repeated here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import zmq
from zmq.utils.monitor import recv_monitor_message

from shoal.data.tier.batch_format import LARGEST_BATCH
from shoal.membership.credentials import ClientCredentials

Frame = bytes | bytearray | memoryview
RECONNECT_MS, HEARTBEAT_MS, SILENT_MS = 200, 2_000, 10_000


@dataclass(frozen=True)
class LinkEvent:
    """Something about one server: it can be asked (`up`), it is gone (`down`), or it has said something."""

    server: int
    kind: str
    frames: Sequence[Frame] = ()


class BatchLinks(Protocol):
    """Connections to servers 0, 1, …, used by one thread."""

    def __len__(self) -> int: ...

    def send(self, server: int, frames: Sequence[Frame]) -> None:
        """Never blocks."""
        ...

    def poll(self, seconds: float) -> list[LinkEvent]:
        """Return what has happened since the last call; waits at most so long for the first event."""
        ...


class SocketLinks:
    """Over ZeroMQ, to `ipc://FILE` or under keys to `tcp://HOST:PORT`."""

    def __init__(self, addresses: Sequence[str], keys: Sequence[ClientCredentials | None] = ()) -> None:
        """`keys`: one for each server that is not on this host."""
        self._context = zmq.Context(io_threads=1)
        self._poller = zmq.Poller()
        self._sockets: list[zmq.Socket[bytes]] = []
        self._monitors: list[zmq.Socket[bytes]] = []
        for server, address in enumerate(addresses):
            self._connect(address, keys[server] if keys else None)

    def _connect(self, address: str, keys: ClientCredentials | None) -> None:
        socket = self._context.socket(zmq.DEALER)
        for option, value in _OPTIONS.items():
            socket.setsockopt(option, value)
        if keys is not None:
            socket.curve_serverkey = keys.coordinator
            socket.curve_publickey, socket.curve_secretkey = keys.pair.public, keys.pair.secret
        # before it connects, so that no event is missed
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        socket.connect(address)
        self._sockets.append(socket)
        self._monitors.append(monitor)
        for each in (socket, monitor):
            self._poller.register(each, zmq.POLLIN)

    def __len__(self) -> int:
        return len(self._sockets)

    def send(self, server: int, frames: Sequence[Frame]) -> None:
        # queues have no limit (see _OPTIONS), so it never fails for want of room
        self._sockets[server].send_multipart(list(frames), zmq.NOBLOCK)

    def poll(self, seconds: float) -> list[LinkEvent]:
        readable = {socket for socket, _ in self._poller.poll(round(1000 * seconds))}
        events: list[LinkEvent] = []
        for server, (socket, monitor) in enumerate(zip(self._sockets, self._monitors, strict=True)):
            # answers first: those of a server that has gone away meanwhile are good
            while socket in readable and socket.poll(0):
                # not copied here: decoding makes the one copy that the script gets
                frames = [frame.buffer for frame in socket.recv_multipart(copy=False)]
                events.append(LinkEvent(server, "said", frames))
            while monitor in readable and monitor.poll(0):
                event = recv_monitor_message(monitor)["event"]
                events.append(LinkEvent(server, "down" if event == zmq.EVENT_DISCONNECTED else "up"))
        return events

    def close(self) -> None:
        for socket in self._sockets:
            socket.disable_monitor()
        self._context.destroy(linger=0)


_OPTIONS = {
    zmq.LINGER: 0,
    zmq.MAXMSGSIZE: LARGEST_BATCH,
    zmq.SNDHWM: 0,
    zmq.RCVHWM: 0,  # what is under way is bounded by what was asked
    zmq.RECONNECT_IVL: RECONNECT_MS,
    zmq.HEARTBEAT_IVL: HEARTBEAT_MS,  # ZeroMQ's thread answers, also while the server prepares a batch
    zmq.HEARTBEAT_TIMEOUT: SILENT_MS,  # a host that is gone closes no connection
}
