"""What can be said on a link: four messages, and nothing else can be decoded.

    Chunk   a piece of what a task exchanges; its bytes follow as a frame of their own; may say what an Ack says
    Ack     everything up to a number has arrived; tells the round trip; may ask to send again
    Beat    I live, and this is what I do
    Bye     I end, and why

Each begins with run, epoch, step, sender and sequence number. Values out of range are refused by the decoder.
"""

from typing import Annotated

import msgspec

from shoal.cluster.links.refused import Refused

PROTOCOL = 2
"""Of what is said here; workers tell each other theirs before they connect."""
LARGEST_HEAD = 1024
LONGEST_REASON = 240

Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Rank = Annotated[int, msgspec.Meta(ge=0, le=2**16)]
Checksum = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Shape = Annotated[tuple[Count, ...], msgspec.Meta(max_length=8)]


class Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What all have."""

    run: Annotated[str, msgspec.Meta(max_length=64)]
    epoch: Count
    """Which view of the group it belongs to: messages of another one are not heard."""
    step: Count
    sender: Rank
    seq: Count
    """Chunks are numbered per link and epoch; elsewhere it is 0."""


class Chunk(Message, frozen=True, tag=1):
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


class Ack(Message, frozen=True, tag=2):
    expected: Count
    stamp: Count
    held: Count
    """Nanoseconds between the arrival of what bore the stamp and this."""
    again: bool = False
    """Something is missing: send everything from `expected` on once more."""


class Beat(Message, frozen=True, tag=3):
    stamp: Count
    state: Annotated[int, msgspec.Meta(ge=0, le=63)]
    """What the worker does, in the words of the board."""


class Bye(Message, frozen=True, tag=4):
    reason: Annotated[str, msgspec.Meta(max_length=LONGEST_REASON)]
    lost: Annotated[int, msgspec.Meta(ge=-1, le=2**16)] = -1
    """The worker that has the blame, if it is another one."""


AnyMessage = Chunk | Ack | Beat | Bye

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)

encode = _encoder.encode


def decode(data: bytes | memoryview) -> AnyMessage:
    """The message in `data`, or Refused."""
    if len(data) > LARGEST_HEAD:
        raise Refused(f"a message of {len(data)} bytes; at most {LARGEST_HEAD} are read")
    try:
        message: AnyMessage = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"not a message of ours: {error}") from None
    return message
