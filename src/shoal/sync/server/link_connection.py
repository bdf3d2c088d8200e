"""A worker's connections to the servers of its run between hosts: messages over links, under keys."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.groups.links import LinkedGroup
from shoal.membership.elastic_session import ElasticSession
from shoal.sync.server.connection import (
    DECLARE_PORT,
    LARGEST_PART,
    NUMBER,
    SERVED_PORT,
    ServerConnection,
    shard_port,
)
from shoal.sync.server.messages import DeclareRequest, encode
from shoal.transport.message_ports import ReceivedMessage

CREDIT = 1024
"""Replies of a server that may be under way: more than a worker has requests."""


class LinkServerConnection(ServerConnection):
    """Of a worker whose group has servers. Replies are taken in by the communication thread."""

    def __init__(self, group: LinkedGroup) -> None:
        super().__init__(group.session.member, group.board, group.seconds)
        self._group, self._messenger = group, group.mesh.messenger
        self._names = [server.member for server in group.servers.values()]
        self._came = threading.Event()
        self._messenger.serve(
            SERVED_PORT, self._hear, CREDIT, largest=LARGEST_PART, threaded=False, senders=self._names
        )

    def __len__(self) -> int:
        return len(self._names)

    def _hear(self, message: ReceivedMessage) -> None:
        (number,) = NUMBER.unpack_from(message.head)
        self._take(self._names.index(message.sender), number, message.head[NUMBER.size :], message.arrays)
        self._came.set()

    def poll(self, server: int, milliseconds: int = 0) -> None:
        if milliseconds and self._came.wait(milliseconds / 1000):
            self._came.clear()

    def _transmit(self, server: int, channel: int, head: bytes, arrays: Sequence[Any]) -> None:
        data = [np.frombuffer(array, np.uint8) for array in arrays]
        self._messenger.push(self._names[server], shard_port(channel), head, data)

    def _declare(self, server: int, request: DeclareRequest) -> None:
        if not self._group.remote:  # the machine of the run is believed, and no other
            self._messenger.push(self._names[server], DECLARE_PORT, encode(request))

    def _waits_long(self, member: str, seconds: float) -> None:
        session = self._group.session
        if isinstance(session, ElasticSession) and member != self.member and session.remote(member):
            session.agent.reports.accuse(member, f"kept {self.member} waiting for {seconds:.0f} s", late=True)
