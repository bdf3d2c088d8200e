"""One way between two processes of a host: a ring of frames in shared memory, each published whole.

    written ── bytes that have been put in         read ── bytes that have been taken out
    frame:  length of head, length of body │ head │ body │ … up to a multiple of 64

Both numbers only grow, and each is written by one process. A process that dies in the middle of a frame has published
nothing of it, so the next process in its slot goes on from the numbers.
"""

import struct
from collections.abc import Callable
from functools import cached_property

import numpy as np

from shoal.core.errors import ShoalError
from shoal.hosts.fences import full_fence

COUNTERS = 128
"""Bytes of the two numbers, each in a cache line of its own."""
_LENGTHS = struct.Struct("<qq")
# A cache line, so that writer and reader of neighbouring frames do not share one.
_ALIGNED = 64
_TURN = -1
"""Instead of the length of a head: the next frame is at the beginning of the ring."""


class MessageRing:
    """Its writer calls `put`, its reader `take` and `release`; each in one thread."""

    def __init__(self, counters: memoryview, reserve: Callable[[], memoryview], size: int) -> None:
        """`reserve` gives `size` shared bytes when they are first needed. New memory is zero, which is an empty ring. A
        frame takes half of it at the most."""
        # Aligned words of 8 bytes are written whole by every processor that torch runs on, so a count is never half
        # new.
        counts = np.frombuffer(counters, np.int64, COUNTERS // 8)
        self._written, self._read = counts[:1], counts[COUNTERS // 16 :][:1]
        self._reserve, self._size = reserve, size
        self._end = 0

    @cached_property
    def _memory(self) -> memoryview:
        return self._reserve()

    def put(self, head: bytes, body: memoryview) -> bool:
        """Whether there was room for it."""
        written, length = int(self._written[0]), _rounded(_LENGTHS.size + len(head) + len(body))
        if 2 * length > self._size:
            raise ShoalError(f"a frame of {length} bytes for a ring of {self._size}; at most half of it is taken")
        at = written % self._size
        # Frames are never split over the end of the ring; a mark tells the reader to go on at its beginning.
        turn = self._size - at if at + length > self._size else 0
        if written + turn + length - int(self._read[0]) > self._size:
            return False
        if turn:
            _LENGTHS.pack_into(self._memory, at, _TURN, 0)
            at = 0
        _LENGTHS.pack_into(self._memory, at, len(head), len(body))
        at += _LENGTHS.size
        self._memory[at : at + len(head)] = head
        at += len(head)
        self._memory[at : at + len(body)] = body
        full_fence()
        # Published last: until here the reader sees none of the frame.
        self._written[0] = written + turn + length
        return True

    def take(self) -> tuple[bytes, memoryview] | None:
        """The next frame, in place until `release`; None if there is none."""
        written, read = int(self._written[0]), int(self._read[0])
        if read == written:
            return None
        full_fence()
        at = read % self._size
        head, body = _LENGTHS.unpack_from(self._memory, at)
        if head == _TURN:
            read, at = read + self._size - at, 0
            head, body = _LENGTHS.unpack_from(self._memory, at)
        end = at + _LENGTHS.size + head + body
        # A slot's former process may have died while it wrote elsewhere in the arena; check before any slice is made.
        if head < 0 or body < 0 or end > self._size or read + end - at > written:
            raise ShoalError(f"a frame of {head} and {body} bytes in a ring of {self._size}: its memory is damaged")
        self._end = read + _rounded(end - at)
        start = at + _LENGTHS.size
        return bytes(self._memory[start : start + head]), self._memory[start + head : end]

    def release(self) -> None:
        """The frame that was taken last is not needed any more."""
        full_fence()
        self._read[0] = self._end

    @property
    def is_empty(self) -> bool:
        return int(self._written[0]) == int(self._read[0])


def _rounded(length: int) -> int:
    return -(-length // _ALIGNED) * _ALIGNED
