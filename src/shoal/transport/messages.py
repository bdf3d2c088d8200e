"""The frames on a link: six message types, and tensors with dtype, shape and checksum. Nothing else is decoded."""

import enum
import math
import struct
import zlib
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import zmq

from shoal.core.errors import ShoalError


class FrameRefused(ShoalError):  # noqa: N818  (of a message, not a mistake of ours)
    """A message or frame that is dropped; if a peer sent it, it will send it again."""


class ProtocolViolation(ShoalError):  # noqa: N818  (of a peer, not a mistake of ours)
    """A message that no honest peer sends, whatever the network does; its sender is suspected at once."""


PROTOCOL = 4
"""Version of these messages; workers compare it before they connect."""
# Bytes. An honest head takes about 128 (`reliable.HEAD`); nothing larger is worth decoding.
LARGEST_HEAD = 1024
JOINED = 0xC1
"""First byte of a head and a piece in one frame. No msgpack begins with it, so no head alone does."""
_JOINT = struct.Struct("<BH")
LONGEST_REASON = 240

# Below 2**63, so that sums of two counts stay in what msgpack and numpy hold.
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Rank = Annotated[int, msgspec.Meta(ge=0, le=2**16)]
Checksum = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Shape = Annotated[tuple[Count, ...], msgspec.Meta(max_length=8)]


class LinkMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The fields of every message."""

    run: Annotated[str, msgspec.Meta(max_length=64)]
    generation: Count
    """The view it belongs to; messages of collectives in another view are dropped."""
    step: Count
    sender: Rank
    seq: Count
    """Number of a chunk: per link and generation for collectives, per stream for messages; elsewhere 0."""


class ChunkHeader(LinkMessage, frozen=True, tag=1):
    channel: Annotated[int, msgspec.Meta(ge=0, le=2**12 - 1)]
    task: Count
    kind: Annotated[str, msgspec.Meta(max_length=16)]
    """The kind of task at the sender, so that workers that make different calls get an error instead of wrong sums."""
    phase: Count
    index: Count
    total: Count
    """Bytes of all pieces together."""
    stamp: Count
    """The sender's clock in nanoseconds; it comes back in an acknowledgement, and is compared with no other clock."""
    dtype: Annotated[str, msgspec.Meta(max_length=16)]
    shape: Shape
    crc: Checksum
    expected: Count = 0
    """This and the next two are an acknowledgement as in `ChunkAck`; 0 means none."""
    echo: Count = 0
    held: Count = 0


class ChunkAck(LinkMessage, frozen=True, tag=2):
    expected: Count
    stamp: Count
    held: Count
    """Nanoseconds between the arrival of the stamp and this answer."""
    again: bool = False
    """Whether something is missing, so that everything from `expected` on must be sent again."""


class LinkHeartbeat(LinkMessage, frozen=True, tag=3):
    stamp: Count
    state: Annotated[int, msgspec.Meta(ge=0, le=63)]
    """The worker's state, as on the status board."""


class LinkClosed(LinkMessage, frozen=True, tag=4):
    reason: Annotated[str, msgspec.Meta(max_length=LONGEST_REASON)]
    lost: Annotated[int, msgspec.Meta(ge=-1, le=2**16)] = -1
    """The worker whose loss is the reason, if it is another one."""


class MessageKind(enum.IntEnum):
    """The kinds of chunks on the message stream: pieces of messages, and control of the stream itself."""

    hello = 0
    """The first chunk of every stream."""
    push = 1
    call = 2
    reply = 3
    failure = 4
    """A reply that says why the handler failed."""
    credit = 5
    cancel = 6


class MessageChunk(LinkMessage, frozen=True, tag=5):
    """A chunk of the message stream, which no view change resets; its piece, plain bytes, is in the same frame.

    One frame is encrypted and authenticated as a whole, so a piece needs no checksum: CURVE does not say which frames
    belong together, and a chunk of a collective, in two, is known by its CRC32 alone.
    """

    stream: Count
    """The sender's stream to this receiver. A later one has a higher number, and begins with `seq` 0."""
    kind: MessageKind
    port: Annotated[str, msgspec.Meta(max_length=32)]
    number: Count
    """The message's number, which only grows; for a credit: how many messages may have begun in all."""
    of: Count
    """For a reply: the call's number. For a cancel: the message's. For a credit: the stream it applies to."""
    index: Count
    total: Count
    """Bytes of the whole message; for a credit: the largest message that the port takes."""
    stamp: Count
    back: Count = 0
    """The receiver's stream that the next three acknowledge as in `MessageAck`; 0 means none."""
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
    """Whether the receiver has dropped this stream after `expected` chunks, so that a new one must begin."""


AnyMessage = ChunkHeader | ChunkAck | LinkHeartbeat | LinkClosed | MessageChunk | MessageAck

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)

encode = _encoder.encode


def decode(data: bytes | memoryview) -> AnyMessage:
    """Decode a message, or raise FrameRefused."""
    if len(data) > LARGEST_HEAD:
        raise FrameRefused(f"a message of {len(data)} bytes; at most {LARGEST_HEAD} are read")
    try:
        message: AnyMessage = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameRefused(f"not a message of ours: {error}") from None
    return message


Array = npt.NDArray[Any]

CHUNK = 60 << 10
"""Bytes of a piece: with header and encryption below 64 KiB, the largest frame an endpoint accepts."""
# 16 GiB: bounds what a header may announce, not the memory taken, which grows as bytes arrive.
LARGEST_WHOLE = 1 << 34
_ZEROS = memoryview(bytes(64 << 10))

DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.int16),  # carried as bits and summed in float32 elsewhere: numpy would round at every step
    "bfloat16": np.dtype(np.int16),
    "int64": np.dtype(np.int64),
    "int32": np.dtype(np.int32),
    "int16": np.dtype(np.int16),
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
}


class FrameBytes(Protocol):
    """Bytes in ZeroMQ's memory, in memory that processes share, or in that of a message's sender."""

    @property
    def buffer(self) -> memoryview: ...

    def __len__(self) -> int: ...


class BorrowedFrame:
    """Bytes in memory of another owner, which are copied when they leave."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: memoryview) -> None:
        self.buffer = buffer

    def __len__(self) -> int:
        return len(self.buffer)


@dataclass(frozen=True, slots=True)
class FramePayload:
    """A frame's bytes, with dtype, shape and checksum."""

    frame: FrameBytes
    dtype: str
    shape: tuple[int, ...]
    crc: int

    @property
    def array(self) -> Array:
        """Return the content, without a copy."""
        return np.frombuffer(self.frame.buffer, DTYPES[self.dtype]).reshape(self.shape)

    @property
    def size(self) -> int:
        return len(self.frame)

    @classmethod
    def borrow(cls, piece: memoryview) -> "FramePayload":
        """Return a payload of plain bytes, without a copy and without a checksum."""
        return cls(BorrowedFrame(piece), "uint8", (len(piece),), 0)

    def changed(self) -> "FramePayload":
        """Return the same buffer with a new checksum, after its content was changed in place."""
        return FramePayload(self.frame, self.dtype, self.shape, zlib.crc32(self.frame.buffer))


def pack(array: Array, dtype: str) -> FramePayload:
    """Copy an array into a frame."""
    # Copied, because the caller goes on summing into the array while libzmq sends.
    frame = zmq.Frame(array.data.cast("B") if array.size else b"", copy=True)
    return FramePayload(frame, dtype, array.shape, zlib.crc32(frame.buffer) if array.size else 0)


def unpack(chunk: ChunkHeader, frame: zmq.Frame) -> FramePayload:
    """Return the payload that `chunk` describes, if the frame matches it; else raise FrameRefused."""
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


def join_frame(head: bytes, piece: memoryview) -> tuple[zmq.Frame, memoryview]:
    """Copy the head of a message's chunk and its piece into one frame; return it, and the piece in it.

    pyzmq makes a frame from bytes only. It is filled from zeros that stay in the processor's cache, and written over:
    to join the bytes first would be another 60 KiB of new memory for each chunk, which costs more than the copy.
    """
    start = _JOINT.size + len(head)
    frame = zmq.Frame(_ZEROS[: start + len(piece)], copy=True)
    data = frame.buffer
    _JOINT.pack_into(data, 0, JOINED, len(head))
    data[_JOINT.size : start] = head
    data[start:] = piece
    return frame, data[start:]


def split_frame(data: memoryview) -> tuple[AnyMessage, memoryview | None]:
    """Decode a frame: a head alone, or the head of a message's chunk and its piece, in place; or raise FrameRefused."""
    if not len(data) or data[0] != JOINED:
        return decode(data), None
    if len(data) < _JOINT.size or len(data) < (start := _JOINT.size + _JOINT.unpack_from(data)[1]):
        raise FrameRefused(f"a frame of {len(data)} bytes, which ends before its head does")
    return decode(data[_JOINT.size : start]), data[start:]
