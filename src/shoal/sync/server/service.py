"""A shard behind a messenger: takes pushes and pulls of members, and answers pulls that had to wait.

A push is acknowledged by the reply to its call, after it was counted. The server is no member: it has no clock, so the
loss of any worker leaves the values and all acknowledged updates where they are.
"""

import threading
from collections.abc import Collection

import numpy as np

from shoal.core.errors import PayloadError, ShoalError
from shoal.sync.server.messages import (
    PullRequest,
    PushReply,
    PushRequest,
    ValuesHead,
    WaitReply,
    decode_request,
    encode,
    request_port,
    values_port,
)
from shoal.sync.server.shard import ParameterShard, ShardUpdate, ShardValues
from shoal.transport.messenger import CallReply, Messenger, ReceivedMessage

CREDIT = 4
"""Messages of one member: the update, a pull, and both again after a connection broke off."""
ROOM = 64 << 10
"""Bytes beside the values in a message."""
MOST_NAMED = 8
"""Members that a reply names as those waited for."""


class ShardService:
    """Of one shard. `change_view` may be called from any thread."""

    def __init__(self, messenger: Messenger, number: int, shard: ParameterShard) -> None:
        self.shard, self._messenger, self._number = shard, messenger, number
        self._lock = threading.Lock()
        largest = shard.state.values.nbytes + ROOM
        messenger.serve(request_port(number), self._handle, CREDIT, largest=largest)

    def change_view(self, members: Collection[str]) -> None:
        """Nobody waits for a lost member from now on."""
        with self._lock:
            self.shard.change_view(members)
            self._release()

    def values(self) -> tuple[int, "np.ndarray[tuple[int], np.dtype[np.float32]]"]:
        """Return the version and a copy of the values, as they are now."""
        with self._lock:
            return self.shard.state.version, self.shard.state.values.copy()

    def _handle(self, message: ReceivedMessage) -> CallReply:
        request = decode_request(message.head, message.sender)
        with self._lock:
            if isinstance(request, PullRequest):
                return self._pull(message.sender, request)
            if isinstance(request, PushRequest):
                return self._push(message, request)
        raise PayloadError(f"{message.sender} sends {type(request).__name__}, which a single shard does not take")

    def _push(self, message: ReceivedMessage, request: PushRequest) -> CallReply:
        if len(message.arrays) != 1:
            raise PayloadError(f"{message.sender} pushes {len(message.arrays)} arrays; an update is one")
        update = ShardUpdate(message.sender, request.clock, message.arrays[0], request.weight)
        outcome = self.shard.push(update)
        self._release()
        return CallReply(encode(PushReply(outcome.name)))

    def _pull(self, sender: str, request: PullRequest) -> CallReply:
        found = self.shard.pull(sender, request.clock)
        if found is not None:
            return CallReply(encode(_head(found)), [found.values])
        if sender not in self.shard.state.clocks:
            raise ShoalError(f"{sender} is not in the view of shard {self._number}, or was quarantined")
        return CallReply(encode(WaitReply(self.shard.waiting[sender][:MOST_NAMED])))

    def _release(self) -> None:
        for found in self.shard.release():
            port = values_port(self._number)
            # a member that is lost meanwhile fails the ticket, which nobody needs: the next view is without it
            self._messenger.push(found.member, port, encode(_head(found)), [found.values], supersedes=port)


def _head(found: ShardValues) -> ValuesHead:
    return ValuesHead(found.clock, found.minimum, found.version)
