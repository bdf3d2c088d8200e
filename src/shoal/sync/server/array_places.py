"""Where the arrays of a request or reply lie, if they lie in memory that a worker has handed to its servers.

worker ── [number and head] [PlacedArrays] [the arrays that lie nowhere …] ──> server
worker <── [number and head] [bytes of each array at the landing place] [or the arrays …] ── server

A worker's areas are handed over through a socket beside the server's (`member_areas.py`): AreaHandover, with the
descriptor of the memory.
"""

from typing import Annotated

import msgspec

from shoal.core.errors import PayloadError

MOST_ARRAYS = 64
"""Of one message."""
Whole = Annotated[int, msgspec.Meta(ge=0, le=2**40)]


class ArrayPlace(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    area: Whole
    start: Whole
    size: Whole
    """Bytes."""


class PlacedArrays(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Of a request."""

    places: Annotated[list[ArrayPlace | None], msgspec.Meta(max_length=MOST_ARRAYS)] = []
    """Of each array; None: it is a part of the message."""
    landing: ArrayPlace | None = None
    """Where the arrays of the reply are put, if they fit."""


class AreaHandover(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Comes with the descriptor of the memory."""

    member: Annotated[str, msgspec.Meta(max_length=64)]
    area: Whole
    size: Annotated[int, msgspec.Meta(ge=1, le=2**40)]


encode = msgspec.msgpack.Encoder().encode
_placed: msgspec.msgpack.Decoder[PlacedArrays] = msgspec.msgpack.Decoder(PlacedArrays)
_handovers: msgspec.msgpack.Decoder[AreaHandover] = msgspec.msgpack.Decoder(AreaHandover)
_sizes: msgspec.msgpack.Decoder[list[int]] = msgspec.msgpack.Decoder(
    Annotated[list[Whole], msgspec.Meta(max_length=MOST_ARRAYS)]
)


def decode_placed(frame: bytes, sender: str) -> PlacedArrays:
    try:
        return _placed.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PayloadError(f"{sender} says where arrays lie by what is no place: {error}") from None


def decode_handover(data: bytes) -> AreaHandover:
    try:
        return _handovers.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PayloadError(f"somebody hands memory over by what is no handover: {error}") from None


def decode_sizes(frame: bytes, sender: str) -> list[int]:
    try:
        return _sizes.decode(frame)
    except msgspec.MsgspecError as error:
        raise PayloadError(f"{sender} says how long arrays are by what are no sizes: {error}") from None
