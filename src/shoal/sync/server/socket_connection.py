"""A worker's connections to the servers of its own host: ZeroMQ sockets that are files."""

import os
from collections.abc import Sequence
from typing import Any

import zmq

from shoal.hosts.status_board import StatusBoard
from shoal.sync.server.connection import LARGEST_PART, NUMBER, ServerConnection


class SocketServerConnection(ServerConnection):
    """To `ipc://…` addresses."""

    def __init__(self, addresses: Sequence[str], member: str, board: StatusBoard, seconds: float) -> None:
        super().__init__(member, board, seconds)
        self.addresses = tuple(addresses)
        self._sockets: list[zmq.Socket[bytes]] = []
        self._owner = 0

    def __len__(self) -> int:
        return len(self.addresses)

    def _open(self) -> list["zmq.Socket[bytes]"]:
        if self._owner != os.getpid():  # not before the fork: a socket belongs to one process
            self._context = context = zmq.Context()
            self._owner, self._sockets = os.getpid(), [self._connect(context, each) for each in range(len(self))]
        return self._sockets

    def _identity(self, server: int) -> bytes:
        """The name of the connection, which the server sends replies to."""
        return self.member.encode()

    def _connect(self, context: "zmq.Context[zmq.Socket[bytes]]", server: int) -> "zmq.Socket[bytes]":
        socket = context.socket(zmq.DEALER)
        # no high-water marks, because `send` must not block; 10 ms, because servers may start to listen late
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.SNDHWM, 0),
            (zmq.RCVHWM, 0),
            (zmq.RECONNECT_IVL, 10),
            (zmq.MAXMSGSIZE, LARGEST_PART),
        ):
            socket.setsockopt(option, value)
        socket.setsockopt(zmq.IDENTITY, self._identity(server))
        socket.connect(self.addresses[server])
        return socket

    def close(self) -> None:
        if self._owner == os.getpid():
            self._context.destroy(linger=0)
        self._sockets, self._owner = [], 0

    def _transmit(self, server: int, channel: int, head: bytes, arrays: Sequence[Any]) -> None:
        # a reference to the arrays, not a copy, where they are large
        self._open()[server].send_multipart([head, *arrays], copy=False)

    def poll(self, server: int, milliseconds: int = 0) -> None:
        socket = self._open()[server]
        while socket.poll(milliseconds):
            milliseconds = 0
            head, *parts = [part.buffer for part in socket.recv_multipart(copy=False)]
            (number,) = NUMBER.unpack_from(head)
            self._take(server, number, bytes(head[NUMBER.size :]), self._read_arrays(server, number, parts))

    def _read_arrays(self, server: int, number: int, parts: Sequence[Any]) -> list[Any]:
        """The arrays of a reply, from what came after its head."""
        return list(parts)
