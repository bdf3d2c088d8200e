"""The frames on a link: six message types, and tensors with dtype, shape and checksum. Nothing else is decoded."""

import enum
import math
import zlib
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import zmq

from shoal.core.errors import ShoalError


class FrameRefused(ShoalError):  # noqa: N818  (of a message, not a mistake of ours)
    """A message or frame that is dropped: the sender will send it again, if it was one of ours."""


class ProtocolViolation(ShoalError):  # noqa: N818  (of a peer, not a mistake of ours)
    """What no honest peer says, whatever the network does: its sender is suspected at once."""


PROTOCOL = 3
"""Of what is said here; workers tell each other theirs before they connect."""
LARGEST_HEAD = 1024
LONGEST_REASON = 240

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Rank = Annotated[int, msgspec.Meta(ge=0, le=2**16)]
Checksum = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Shape = Annotated[tuple[Count, ...], msgspec.Meta(max_length=8)]


class LinkMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What all have."""

    run: Annotated[str, msgspec.Meta(max_length=64)]
    generation: Count
    """Which view of the group it belongs to: messages of another one are not heard."""
    step: Count
    sender: Rank
    seq: Count
    """Chunks of collectives are numbered per link and generation, those of messages per stream; elsewhere it is 0."""


class ChunkHeader(LinkMessage, frozen=True, tag=1):
    channel: Annotated[int, msgspec.Meta(ge=0, le=2**12 - 1)]
    task: Count
    kind: Annotated[str, msgspec.Meta(max_length=16)]
    """What the sender takes the task for: workers that do different things are told so."""
    phase: Count
    index: Count
    total: Count
    """Bytes of the whole that this is a piece of."""
    stamp: Count
    """The sender's clock in nanoseconds: it comes back in an Ack and means nothing to anybody else."""
    dtype: Annotated[str, msgspec.Meta(max_length=16)]
    shape: Shape
    crc: Checksum
    expected: Count = 0
    """As in an Ack, with the two that follow; 0 says nothing."""
    echo: Count = 0
    held: Count = 0


class ChunkAck(LinkMessage, frozen=True, tag=2):
    expected: Count
    stamp: Count
    held: Count
    """Nanoseconds between the arrival of what bore the stamp and this."""
    again: bool = False
    """Something is missing: send everything from `expected` on once more."""


class LinkHeartbeat(LinkMessage, frozen=True, tag=3):
    stamp: Count
    state: Annotated[int, msgspec.Meta(ge=0, le=63)]
    """What the worker does, in the words of the board."""


class LinkClosed(LinkMessage, frozen=True, tag=4):
    reason: Annotated[str, msgspec.Meta(max_length=LONGEST_REASON)]
    lost: Annotated[int, msgspec.Meta(ge=-1, le=2**16)] = -1
    """The worker that has the blame, if it is another one."""


class MessageKind(enum.IntEnum):
    """What a chunk of the message stream is: a piece of a message, or a word that keeps the stream going."""

    hello = 0
    """The first chunk of every stream."""
    push = 1
    call = 2
    reply = 3
    failure = 4
    """A reply too: why the handler failed."""
    credit = 5
    cancel = 6


class MessageChunk(LinkMessage, frozen=True, tag=5):
    """Of the message stream, which no view change resets; its payload is plain bytes."""

    stream: Count
    """Of the sender to this receiver. A later one has a greater number, and begins with `seq` 0."""
    kind: MessageKind
    port: Annotated[str, msgspec.Meta(max_length=32)]
    number: Count
    """Of the message, unique for its sender and growing; of a credit: how many messages may have begun in all."""
    of: Count
    """Reply: the number of the call. Cancel: that of the message. Credit: the stream that it is for."""
    index: Count
    total: Count
    """Bytes of the whole message; of a credit: the largest message that the port takes."""
    stamp: Count
    crc: Checksum
    back: Count = 0
    """The receiver's own stream, of which the three that follow speak as in an Ack; 0 says nothing."""
    expected: Count = 0
    echo: Count = 0
    held: Count = 0


class MessageAck(LinkMessage, frozen=True, tag=6):
    stream: Count
    expected: Count
    stamp: Count
    held: Count
    again: bool = False
    closed: bool = False
    """The receiver has dropped this stream after `expected` chunks: begin another one."""


AnyMessage = ChunkHeader | ChunkAck | LinkHeartbeat | LinkClosed | MessageChunk | MessageAck

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)

encode = _encoder.encode


def decode(data: bytes | memoryview) -> AnyMessage:
    """The message in `data`, or Refused."""
    if len(data) > LARGEST_HEAD:
        raise FrameRefused(f"a message of {len(data)} bytes; at most {LARGEST_HEAD} are read")
    try:
        message: AnyMessage = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameRefused(f"not a message of ours: {error}") from None
    return message


Array = npt.NDArray[Any]

CHUNK = 60 << 10
"""Bytes of a piece: with head and seal below 64 KiB, the most a stranger can make anybody hold."""
LARGEST_WHOLE = 1 << 34

DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.int16),  # carried, and added up elsewhere: numpy's own would round at every step
    "bfloat16": np.dtype(np.int16),
    "int64": np.dtype(np.int64),
    "int32": np.dtype(np.int32),
    "int16": np.dtype(np.int16),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
}


@dataclass(frozen=True, slots=True)
class FramePayload:
    """Bytes that travel: ZeroMQ's buffer, and what is in it."""

    frame: zmq.Frame
    dtype: str
    shape: tuple[int, ...]
    crc: int

    @property
    def array(self) -> Array:
        """The content, in place."""
        return np.frombuffer(self.frame.buffer, DTYPES[self.dtype]).reshape(self.shape)

    @property
    def size(self) -> int:
        return len(self.frame)

    def changed(self) -> "FramePayload":
        """The same buffer after something was added to it in place."""
        return FramePayload(self.frame, self.dtype, self.shape, zlib.crc32(self.frame.buffer))


def pack(array: Array, dtype: str) -> FramePayload:
    """A copy of `array`, ready to travel."""
    frame = zmq.Frame(array.data.cast("B") if array.size else b"", copy=True)
    return FramePayload(frame, dtype, array.shape, zlib.crc32(frame.buffer) if array.size else 0)


def unpack(chunk: ChunkHeader, frame: zmq.Frame) -> FramePayload:
    """What `chunk` announced, if it is what came."""
    kind = DTYPES.get(chunk.dtype)
    if kind is None:
        raise FrameRefused(f"dtype {chunk.dtype[:20]!r} does not travel; these do: {', '.join(DTYPES)}")
    if math.prod(chunk.shape) * kind.itemsize != len(frame) or len(frame) > CHUNK:
        raise FrameRefused(f"a frame of {len(frame)} bytes for shape {chunk.shape} of {chunk.dtype}; at most {CHUNK}")
    if not len(frame) <= chunk.total <= LARGEST_WHOLE:
        raise FrameRefused(f"a frame of {len(frame)} bytes of a whole of {chunk.total}; at most {LARGEST_WHOLE}")
    if (zlib.crc32(frame.buffer) if len(frame) else 0) != chunk.crc:
        raise FrameRefused(f"chunk {chunk.index} of task {chunk.task} has a wrong checksum")
    return FramePayload(frame, chunk.dtype, chunk.shape, chunk.crc)


def unpack_bytes(chunk: MessageChunk, frame: zmq.Frame) -> FramePayload:
    """What `chunk` of the message stream announced, if it is what came."""
    if len(frame) > CHUNK or (zlib.crc32(frame.buffer) if len(frame) else 0) != chunk.crc:
        raise FrameRefused(f"piece {chunk.index} of message {chunk.number} has {len(frame)} bytes or a wrong checksum")
    return FramePayload(frame, "uint8", (len(frame),), chunk.crc)
