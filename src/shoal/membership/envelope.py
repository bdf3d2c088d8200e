"""The envelope of a message between a member and the coordinator names protocol and run. Two frames:

    | shoal 6 run-20260131-142501-4f2a |  | a message of the closed set, in msgpack |

The first frame keeps its form in every version, so that two different versions can tell each other so.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from shoal.core.errors import ShoalError
from shoal.core.ids import PATTERN
from shoal.membership.invitation import ANY_RUN, LARGEST_ANSWER, RunBrief, RunQuery
from shoal.membership.protocol import JoinRefused, Order, ProtocolMessage, Report

PROTOCOL = 6
# Bytes: version, and a run's name of at most 64.
LARGEST_HEAD = 96
LARGEST_REPORT = 16 << 10
"""Bytes of a member's message: enough for the most ranges of a leased pass."""
LARGEST_ORDER = 128 << 10
"""Bytes of a coordinator's message: enough for a view of the most members."""
_HEAD = re.compile(rb"shoal ([0-9]{1,6}) (" + PATTERN.pattern.encode() + rb")")

_encoder = msgspec.msgpack.Encoder()
_reports: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)
_orders: msgspec.msgpack.Decoder[Order] = msgspec.msgpack.Decoder(Order)

_asks: msgspec.msgpack.Decoder[RunQuery] = msgspec.msgpack.Decoder(RunQuery)
_answers: msgspec.msgpack.Decoder[RunBrief | JoinRefused] = msgspec.msgpack.Decoder(RunBrief | JoinRefused)

_NOT_OURS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

Frame = bytes | memoryview


class UnreadableMessage(ShoalError):  # noqa: N818  (of a message, not a mistake of ours)
    """The message is not Shoal's; it is dropped."""


class ProtocolMismatch(ShoalError):  # noqa: N818
    """The message is Shoal's, but of another protocol or run; the error says which."""


@dataclass(frozen=True)
class MessageEnvelope:
    """Encodes and decodes the messages of one run."""

    run: str
    protocol: int = PROTOCOL

    def seal(self, message: ProtocolMessage) -> list[bytes]:
        return [f"shoal {self.protocol} {self.run}".encode(), _encoder.encode(message)]

    def report(self, frames: Sequence[Frame]) -> Report:
        """Decode a member's message, or raise one of the two errors above."""
        body = self._body(frames, LARGEST_REPORT)
        try:
            return _reports.decode(body)
        except _NOT_OURS as error:
            raise UnreadableMessage(f"not a member's message: {error}") from None

    def order(self, frames: Sequence[Frame]) -> Order:
        """Decode a coordinator's message, or raise one of the two errors above."""
        body = self._body(frames, LARGEST_ORDER)
        try:
            return _orders.decode(body)
        except _NOT_OURS as error:
            raise UnreadableMessage(f"not a coordinator's message: {error}") from None

    def ask(self, frames: Sequence[Frame]) -> RunQuery:
        """Decode the question of a machine that does not know the run yet, or raise one of the two errors above."""
        body = self._body(frames, LARGEST_REPORT)
        try:
            return _asks.decode(body)
        except _NOT_OURS as error:
            raise UnreadableMessage(f"not a question: {error}") from None

    def answer(self, frames: Sequence[Frame]) -> RunBrief | JoinRefused:
        """Decode the coordinator's answer to that question."""
        body = self._body(frames, LARGEST_ANSWER)
        try:
            return _answers.decode(body)
        except _NOT_OURS as error:
            raise UnreadableMessage(f"not an answer: {error}") from None

    def _body(self, frames: Sequence[Frame], largest: int) -> Frame:
        if len(frames) != 2 or len(frames[0]) > LARGEST_HEAD:
            raise UnreadableMessage(f"{len(frames)} frames; a message has a short head and a body")
        head = _HEAD.fullmatch(bytes(frames[0]))
        if head is None:
            raise UnreadableMessage("the head is not one of Shoal's")
        protocol, run = int(head[1]), head[2].decode()
        # Told apart from noise, because a person can do something about it.
        if protocol != self.protocol:
            raise ProtocolMismatch(
                f"this side speaks protocol {self.protocol}, the other {protocol}; use the same Shoal on both"
            )
        if run != self.run:
            raise ProtocolMismatch(f"this side is of run {self.run}, the other of {run}")
        if len(frames[1]) > largest:
            raise UnreadableMessage(f"a body of {len(frames[1])} bytes; at most {largest} are read")
        return frames[1]


ASKING = MessageEnvelope(ANY_RUN)
"""The envelope for machines that do not know the run yet."""


def asks(frames: Sequence[Frame]) -> bool:
    """Return whether a message is addressed to any run."""
    head = _HEAD.fullmatch(bytes(frames[0])) if frames and len(frames[0]) <= LARGEST_HEAD else None
    return head is not None and head[2] == ANY_RUN.encode()
