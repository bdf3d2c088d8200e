"""A worker's connections to servers between hosts that have replicas: links to both processes of each.

A request stays here until it was answered. When the second process of a server says that it has taken over, all that
has no answer is sent to it, in order; it knows by the numbers what was handled. Only that process can say so, because
its key is known from the beginning.
"""

from collections.abc import Sequence
from typing import Any

from shoal.groups.links import LinkedGroup
from shoal.sync.server.connection import NUMBER, TAKEN_OVER
from shoal.sync.server.link_connection import LinkServerConnection
from shoal.sync.server.messages import DeclareRequest
from shoal.sync.server.unanswered_requests import UnansweredRequest, UnansweredRequests
from shoal.transport.message_ports import ReceivedMessage


class ReplicatedLinkConnection(LinkServerConnection):
    """Of a worker whose group has servers, and behind them as many replicas."""

    def __init__(self, group: LinkedGroup) -> None:
        self._pending = UnansweredRequests()
        self._declared: list[tuple[int, DeclareRequest]] = []
        self._taken_over: list[int] = []
        """Servers whose replica has said that it answers, and which this thread has not followed yet."""
        found = sorted(group.servers.items())
        self._processes = [entry.member for _, entry in found]
        self._count = len(found) // 2
        # after the fields above: it opens the port, and the communication thread calls `_hear` from then on
        super().__init__(group)
        self._names = self._processes[: self._count]

    def _hear(self, message: ReceivedMessage) -> None:
        process = self._processes.index(message.sender)
        server, (number,) = process % self._count, NUMBER.unpack_from(message.head)
        if number == TAKEN_OVER:
            if process >= self._count:
                self._taken_over.append(server)
        else:
            self._take(server, number, message.head[NUMBER.size :], message.arrays)
        self._came.set()

    def _take(self, server: int, number: int, head: bytes, arrays: list[Any]) -> None:
        super()._take(server, number, head, arrays)
        if number not in self._expected:
            self._pending.note_answer(number)

    def forget(self, number: int) -> None:
        super().forget(number)
        self._pending.forget(number)

    def _transmit(self, server: int, channel: int, head: bytes, arrays: Sequence[Any]) -> None:
        self._follow_takeovers()
        (number,) = NUMBER.unpack_from(head)
        if number in self._expected:  # others ask about a request that waits, and are asked again anyway
            self._pending.add(number, UnansweredRequest(server, channel, head, arrays))
        self._dispatch(server, channel, head, arrays)

    def _dispatch(self, server: int, channel: int, head: bytes, arrays: Sequence[Any]) -> None:
        (number,) = NUMBER.unpack_from(head)
        super()._transmit(server, channel, NUMBER.pack(self._pending.find_oldest(number)) + head, arrays)

    def _declare(self, server: int, request: DeclareRequest) -> None:
        self._declared.append((server, request))
        super()._declare(server, request)

    def poll(self, server: int, milliseconds: int = 0) -> None:
        super().poll(server, milliseconds)
        self._follow_takeovers()

    def _follow_takeovers(self) -> None:
        while self._taken_over:
            self._turn_to_replica(self._taken_over.pop())

    def _turn_to_replica(self, server: int) -> None:
        self._names[server] = self._processes[self._count + server]
        self._group.forget_server(server)
        # first: the dead primary may not have passed a declaration on, and requests need its port
        for _, request in filter(lambda each: each[0] == server, self._declared):
            super()._declare(server, request)
        for each in self._pending.list_of(server):
            self._dispatch(server, each.channel, each.head, each.arrays)
