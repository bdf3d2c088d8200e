"""A worker's connections to servers of its own host that have replicas.

A request stays here until it was answered. When the launcher has noted on the status board that another process answers
for a server, a new connection is made and all that has no answer is sent again, in order; the server knows by the
numbers what it has handled. The name of a connection ends with the term it was made in, so what an older one still
delivers is told apart.
"""

from collections.abc import Sequence
from typing import Any

import zmq

from shoal.hosts.status_board import StatusBoard
from shoal.sync.server.connection import NUMBER
from shoal.sync.server.socket_connection import SocketServerConnection
from shoal.sync.server.unanswered_requests import UnansweredRequest, UnansweredRequests


class ReplicatedServerConnection(SocketServerConnection):
    """To `ipc://…` addresses, each of which another process may take over."""

    def __init__(self, addresses: Sequence[str], member: str, board: StatusBoard, seconds: float) -> None:
        super().__init__(addresses, member, board, seconds)
        self._pending = UnansweredRequests()
        self._terms = [0] * len(self.addresses)

    def _identity(self, server: int) -> bytes:
        self._terms[server] = self.board.server_term(server)
        return f"{self.member} {self._terms[server]}".encode()

    def forget(self, number: int) -> None:
        super().forget(number)
        self._pending.forget(number)

    def _take(self, server: int, number: int, head: bytes, arrays: list[Any]) -> None:
        super()._take(server, number, head, arrays)
        if number not in self._expected:
            self._pending.note_answer(number)

    def _transmit(self, server: int, channel: int, head: bytes, arrays: Sequence[Any]) -> None:
        self._follow_terms()
        (number,) = NUMBER.unpack_from(head)
        if number in self._expected:  # others ask about a request that waits, and are asked again anyway
            self._pending.add(number, UnansweredRequest(server, channel, head, arrays))
        self._dispatch(server, head, arrays)

    def _dispatch(self, server: int, head: bytes, arrays: Sequence[Any]) -> None:
        (number,) = NUMBER.unpack_from(head)
        super()._transmit(server, 0, NUMBER.pack(self._pending.find_oldest(number)) + head, arrays)

    def poll(self, server: int, milliseconds: int = 0) -> None:
        self._follow_terms()
        super().poll(server, milliseconds)

    def _follow_terms(self) -> None:
        for server, term in enumerate(self._terms):
            if self._sockets and self.board.server_term(server) != term:
                self._reconnect(server, self._sockets)

    def _reconnect(self, server: int, sockets: "list[zmq.Socket[bytes]]") -> None:
        sockets[server].close(linger=0)  # with all that it has not delivered: it would come out of order
        sockets[server] = self._connect(self._context, server)
        for request in self._pending.list_of(server):
            self._dispatch(server, request.head, request.arrays)
