"""A worker's side of a shard: pushes updates and pulls values, each with a deadline and a suspect."""

import threading
from collections.abc import Sequence

from shoal.core.clock import Deadline
from shoal.core.errors import DeadlineError, PayloadError
from shoal.sync.server.messages import (
    PullRequest,
    PushReply,
    PushRequest,
    ValuesHead,
    WaitReply,
    decode_reply,
    encode,
    read_outcome,
    request_port,
    values_port,
)
from shoal.sync.server.rules.base import FloatArray
from shoal.sync.server.service import CREDIT, ROOM
from shoal.sync.server.shard import PushOutcome, ShardValues
from shoal.transport.message_ports import CallReply
from shoal.transport.messages import Array
from shoal.transport.messenger import Messenger, ReceivedMessage

ASK_AGAIN = 2.0
"""Seconds after which a pull that waits is asked again: a server that is lost fails the call."""


class ShardClient:
    """Of one worker and one shard of `size` elements. Used by one thread."""

    def __init__(self, messenger: Messenger, member: str, server: str, number: int, size: int) -> None:
        self.member, self.server, self.number, self.size = member, server, number, size
        self._messenger, self._largest = messenger, 4 * size + ROOM
        self._arrived = threading.Condition()
        self._newest: ShardValues | None = None
        messenger.serve(
            values_port(number), self._receive, CREDIT, largest=self._largest, threaded=False, senders=[server]
        )

    def push(self, clock: int, update: FloatArray, deadline: float, weight: float = 1.0) -> PushOutcome:
        """Return what became of the update once the server has counted it; pushing it again is harmless."""
        reply = self._call(encode(PushRequest(clock, weight)), [update], deadline)
        found = decode_reply(reply.head, self.server)
        if not isinstance(found, PushReply):
            raise PayloadError(f"the shard of {self.server} answers a push with {type(found).__name__}")
        return read_outcome(found, self.server)

    def pull(self, clock: int, deadline: float) -> ShardValues:
        """Return the values for step `clock`, as soon as the staleness bound allows."""
        left, slowest = Deadline.after(deadline), ["nobody"]
        while not left.expired:
            reply = self._call(encode(PullRequest(clock)), [], left.left)
            found = decode_reply(reply.head, self.server)
            if isinstance(found, ValuesHead):
                return self._read(found, reply.arrays)
            if not isinstance(found, WaitReply):
                raise PayloadError(f"the shard of {self.server} answers a pull with {type(found).__name__}")
            slowest = found.slowest
            if (values := self._await(clock, min(ASK_AGAIN, left.left))) is not None:
                return values
        raise DeadlineError(
            f"{self.member} has waited {deadline:.0f} s for {', '.join(slowest)} before step {clock} "
            f"at shard {self.number} of {self.server}"
        )

    def _call(self, head: bytes, arrays: list[FloatArray], deadline: float) -> CallReply:
        port = request_port(self.number)
        return self._messenger.call(self.server, port, head, arrays, deadline=deadline, largest=self._largest)

    def _await(self, clock: int, seconds: float) -> ShardValues | None:
        with self._arrived:
            self._arrived.wait_for(lambda: self._has(clock), seconds)
            return self._newest if self._has(clock) else None

    def _has(self, clock: int) -> bool:
        return self._newest is not None and self._newest.clock == clock

    def _receive(self, message: ReceivedMessage) -> None:
        """In the communication thread."""
        found = decode_reply(message.head, message.sender)
        if not isinstance(found, ValuesHead):
            raise PayloadError(f"the shard of {message.sender} sends {type(found).__name__} where values come")
        values = self._read(found, message.arrays)
        with self._arrived:
            self._newest = values
            self._arrived.notify_all()

    def _read(self, head: ValuesHead, arrays: Sequence[Array]) -> ShardValues:
        if len(arrays) != 1 or arrays[0].dtype.name != "float32" or arrays[0].shape != (self.size,):
            shapes = ", ".join(f"{array.dtype} {array.shape}" for array in arrays) or "no array"
            raise PayloadError(f"the shard of {self.server} sends {shapes}; it has {self.size} float32")
        return ShardValues(self.member, head.clock, head.minimum, head.version, arrays[0])
