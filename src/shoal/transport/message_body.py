"""The content of a message as bytes: the caller's head, and arrays with dtype and shape.

    length of the specification (4 bytes) | specification | … | array 0 | … | array 1 …

Arrays begin at multiples of 16 bytes, so the receiver can use them in place. Nothing is executed to read them, and
sizes are checked against what has arrived before any array is made.
"""

import math
import struct
from bisect import bisect_right
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from shoal.core.errors import UsageError
from shoal.transport.messages import Array, ProtocolViolation, Shape

# Limits that an honest message does not reach; a hostile one is refused by its specification, before anything is made.
LARGEST_MESSAGE_HEAD = 32 << 10
MOST_ARRAYS = 256
# Twice the largest item, so every array may be read in place.
ALIGNMENT = 16
_LENGTH = struct.Struct("<I")
ARRAY_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name) for name in ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8")
}
"""Dtypes that a message can carry; send bfloat16 as int16 of the same bits."""
_NAMES = {dtype: name for name, dtype in ARRAY_DTYPES.items()}  # numpy makes a name anew each time, in 3 µs


class ArraySpec(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    dtype: Annotated[str, msgspec.Meta(max_length=16)]
    shape: Shape


class BodySpec(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    head: Annotated[bytes, msgspec.Meta(max_length=LARGEST_MESSAGE_HEAD)]
    arrays: Annotated[tuple[ArraySpec, ...], msgspec.Meta(max_length=MOST_ARRAYS)]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(BodySpec)


class MessageBody:
    """A message's bytes, not copied: the arrays must not change until the message has left."""

    def __init__(self, head: bytes, arrays: Sequence[Array] = ()) -> None:
        if len(head) > LARGEST_MESSAGE_HEAD or len(arrays) > MOST_ARRAYS:
            raise UsageError(
                f"a message with a head of {len(head)} bytes and {len(arrays)} arrays; at most {LARGEST_MESSAGE_HEAD} "
                f"and {MOST_ARRAYS} go, send more as several messages or larger arrays"
            )
        self._segments: list[memoryview] = []
        self._starts: list[int] = []
        self.total = 0
        # numpy gives scalars no buffer to slice, so they travel as arrays of one; the shape in `specs` stays ().
        whole = [np.ascontiguousarray(array) if array.ndim else array.reshape(1) for array in arrays]
        specs = tuple(_describe(array, kept) for array, kept in zip(arrays, whole, strict=True))
        spec = _encoder.encode(BodySpec(bytes(head), specs))
        self._add(memoryview(_LENGTH.pack(len(spec)) + spec))
        for array in whole:
            self._add(memoryview(bytes(-self.total % ALIGNMENT)))
            self._add(array.reshape(-1).view(np.uint8).data if array.size else memoryview(b""))

    def _add(self, segment: memoryview) -> None:
        if len(segment):
            self._segments.append(segment)
            self._starts.append(self.total)
            self.total += len(segment)

    def cut(self, start: int, stop: int) -> memoryview:
        """Return the bytes from `start` to `stop`, without a copy if they lie in one array."""
        first = bisect_right(self._starts, start) - 1
        parts = []
        for segment, at in zip(self._segments[first:], self._starts[first:], strict=True):
            if at >= stop:
                break
            parts.append(segment[max(0, start - at) : stop - at])
        # Only pieces that straddle two arrays are copied.
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


def _describe(array: Array, kept: Array) -> ArraySpec:
    name = _NAMES.get(kept.dtype)
    if name is None:
        raise UsageError(f"an array of {kept.dtype} cannot be sent; {', '.join(ARRAY_DTYPES)} can")
    return ArraySpec(name, array.shape)


def parse(body: bytearray) -> tuple[bytes, list[Array]]:
    """Return head and arrays of a whole message; raise ProtocolViolation if its bytes are no valid body."""
    length = _LENGTH.unpack_from(body)[0] if len(body) >= _LENGTH.size else len(body)
    end = _LENGTH.size + length
    if end > len(body):
        raise ProtocolViolation(f"a message of {len(body)} bytes whose specification takes {length}")
    try:
        spec = _decoder.decode(memoryview(body)[_LENGTH.size : end])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolViolation(f"a message that is not specified: {error}") from None
    arrays = []
    for each in spec.arrays:
        start = end + -end % ALIGNMENT
        dtype = ARRAY_DTYPES.get(each.dtype)
        end = start + math.prod(each.shape) * dtype.itemsize if dtype is not None else -1
        if dtype is None or end > len(body):
            raise ProtocolViolation(f"an array of {each.dtype[:20]} and shape {each.shape} in {len(body)} bytes")
        try:
            arrays.append(np.frombuffer(body, dtype, math.prod(each.shape), start).reshape(each.shape))
        except ValueError as error:  # (0, 2**62) has no elements, and is too large all the same
            raise ProtocolViolation(f"an array of shape {each.shape}: {error}") from None
    if end != len(body):
        raise ProtocolViolation(f"a message of {len(body)} bytes of which {end} are specified")
    return spec.head, arrays
