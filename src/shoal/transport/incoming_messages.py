"""The messages arriving from one member: a pure state machine without sockets, threads or clocks.

The state outlives the member's link: a stream that was dropped is never continued in the middle, so no message is
delivered twice. Memory grows as bytes arrive, up to what the ports' credit allows this member.
"""

import enum
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from shoal.transport.messages import CHUNK, MessageChunk, MessageKind, ProtocolViolation
from shoal.transport.reliable import IncomingLink

MOST_PARTS = 1024
"""Messages of one member that may be incomplete at a time."""
Limit = Callable[[int], int | None]
"""Returns how many bytes the reply to a call may have, by the call's number; None if its caller has given up."""


class ChunkArrival(enum.Enum):
    """How a chunk fits the stream, judged by its numbers alone."""

    next = enum.auto()
    repeated = enum.auto()
    gap = enum.auto()
    stale = enum.auto()
    """It is of a stream that a later one has replaced."""
    closed = enum.auto()
    """It is of a stream that was dropped here."""


@dataclass
class IncomingMessage:
    """A message that is arriving; complete when `size` reaches `total`."""

    kind: MessageKind
    port: str
    number: int
    of: int
    total: int
    kept: bool = True
    """Whether a caller or port waits for it; else its bytes are counted and dropped."""
    body: bytearray = field(default_factory=bytearray)
    size: int = 0

    def add(self, chunk: MessageChunk, data: memoryview, piece: int) -> None:
        same = (chunk.kind, chunk.port, chunk.of, chunk.total) == (self.kind, self.port, self.of, self.total)
        due = min(piece, self.total - self.size)
        if not same or chunk.index * piece != self.size or len(data) != due or not due:
            raise ProtocolViolation(
                f"piece {chunk.index} with {len(data)} bytes of message {chunk.number} of {chunk.total} bytes for "
                f"port {chunk.port!r}, where {due} bytes of {self.total} for {self.port!r} were due"
            )
        if self.kept:
            self.body += data
        self.size += len(data)


@dataclass
class IncomingMessages:
    """The messages of one member."""

    link: IncomingLink = field(default_factory=IncomingLink)
    piece: int = CHUNK
    """Bytes of a message that come at a time."""
    stream: int = 0
    """0 before the first chunk."""
    closed: bool = False
    _last: int = -1
    _parts: dict[int, IncomingMessage] = field(default_factory=dict)
    _begun: Counter[str] = field(default_factory=Counter)
    """By port: messages of this stream that have begun."""
    _open: Counter[str] = field(default_factory=Counter)
    """By port: messages of any stream that have begun and are not handled yet."""
    _granted: dict[str, int] = field(default_factory=dict)
    _largest: dict[str, int] = field(default_factory=dict)

    def sort(self, chunk: MessageChunk) -> ChunkArrival:
        """Classify a chunk before its content is read."""
        if chunk.stream < self.stream or not chunk.stream:
            return ChunkArrival.stale
        if chunk.stream > self.stream:
            return ChunkArrival.gap if chunk.seq else ChunkArrival.next
        if self.closed:
            return ChunkArrival.closed
        if chunk.seq < self.link.expected:
            return ChunkArrival.repeated
        return ChunkArrival.next if chunk.seq == self.link.expected else ChunkArrival.gap

    def take(self, chunk: MessageChunk, data: memoryview, now: float, limit: Limit) -> IncomingMessage | None:
        """Take the next chunk; return the message that it completes, if any. The caller handles credits."""
        if chunk.stream > self.stream:
            self._adopt(chunk)
        elif chunk.kind == MessageKind.hello:
            raise ProtocolViolation("a greeting in the middle of a stream")
        whole = None
        match chunk.kind:
            case MessageKind.hello | MessageKind.credit | MessageKind.cancel if len(data):
                raise ProtocolViolation(f"a {chunk.kind.name} with {len(data)} bytes")
            case MessageKind.hello | MessageKind.credit:
                pass
            case MessageKind.cancel:
                if (dropped := self._parts.pop(chunk.of, None)) is not None:
                    self._release(dropped)
            case _:
                whole = self._add(chunk, data, limit)
        self.link.take(chunk, now)
        return whole

    def _adopt(self, chunk: MessageChunk) -> None:
        """Begin a newer stream, and drop the rest of the older one."""
        if chunk.kind != MessageKind.hello:
            raise ProtocolViolation(f"a stream that begins with a {chunk.kind.name}")
        self.close()
        self.stream, self.closed, self._last = chunk.stream, False, -1
        # `_open` stays: messages of the older stream may still be in their handlers, and occupy the port's credit.
        self._begun.clear()
        self._granted.clear()
        self.link.reset()

    def _add(self, chunk: MessageChunk, data: memoryview, limit: Limit) -> IncomingMessage | None:
        if not chunk.index:
            self._begin(chunk, limit)
        message = self._parts.get(chunk.number)
        if message is None:
            raise ProtocolViolation(f"piece {chunk.index} of message {chunk.number}, which has not begun")
        message.add(chunk, data, self.piece)
        if message.size < message.total:
            return None
        return self._parts.pop(chunk.number)

    def _begin(self, chunk: MessageChunk, limit: Limit) -> None:
        if chunk.number <= self._last or len(self._parts) >= MOST_PARTS:
            raise ProtocolViolation(
                f"message {chunk.number} after {self._last}, while {len(self._parts)} have not ended"
            )
        kept = True
        if chunk.kind in (MessageKind.push, MessageKind.call):
            # Credit was counted before the sender could know it, so an honest one cannot be here by any delay.
            if self._begun[chunk.port] >= self._granted.get(chunk.port, 0):
                raise ProtocolViolation(f"a message for port {chunk.port!r} without credit")
            if chunk.total > self._largest[chunk.port]:
                raise ProtocolViolation(
                    f"a message of {chunk.total} bytes for port {chunk.port!r}; it takes {self._largest[chunk.port]}"
                )
            self._begun[chunk.port] += 1
            self._open[chunk.port] += 1
        else:
            most = limit(chunk.of)
            # A call whose deadline has passed, or a second reply to one call: read to keep the stream whole, and drop.
            kept = most is not None and not any(chunk.of == other.of for other in self._parts.values() if other.kept)
            if most is not None and chunk.total > most:
                raise ProtocolViolation(f"a reply of {chunk.total} bytes; the caller takes {most}")
        self._last = chunk.number
        self._parts[chunk.number] = IncomingMessage(chunk.kind, chunk.port, chunk.number, chunk.of, chunk.total, kept)

    def grant(self, port: str, credit: int, largest: int) -> int | None:
        """Return how many messages the member may have begun on a port in this stream; None if it need not be told.

        It is told when half of the credit has come back, so that not every message costs one in return.
        """
        if not self.stream or self.closed:
            return None
        self._largest[port] = largest
        # A total since the stream began, not a difference: a grant that is lost is made up for by the next.
        granted = self._begun[port] + credit - self._open[port]
        if granted - self._granted.get(port, 0) < max(1, credit // 2):
            return None
        self._granted[port] = granted
        return granted

    @property
    def grants(self) -> dict[str, tuple[int, int]]:
        """Return, by port, the last grant in this stream and the largest message."""
        return {port: (granted, self._largest[port]) for port, granted in self._granted.items() if not self.closed}

    def _release(self, message: IncomingMessage) -> None:
        if message.kind in (MessageKind.push, MessageKind.call):
            self._open[message.port] -= 1

    def handled(self, message: IncomingMessage) -> None:
        """Free the credit of a handled message."""
        self._release(message)

    def close(self) -> None:
        """Drop incomplete messages; further chunks of the stream are refused."""
        for message in self._parts.values():
            self._release(message)
        self._parts.clear()
        self.closed = True
