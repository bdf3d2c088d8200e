"""Rows of a table that one server keeps: memory only for pages with rows that somebody has used.

    place p of server i of k    row i + k · p of the table, so rows that are used often are spread over all servers

A row's first values are drawn when it is first read or changed, from the table's seed and the row's number alone. They
are the same however many servers there are, nobody ever holds the whole table, and a row that nobody used needs neither
memory nor a place in a checkpoint. A rule's slots begin with zeros, row by row.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from shoal.core.errors import PayloadError, UsageError
from shoal.sync.server.messages import TableShape
from shoal.sync.server.rules.base import FloatArray, ServerRule
from shoal.sync.server.shard_state import RowNumbers

DRAWN_AT_ONCE = 1 << 18
"""Numbers; drawing takes five times their memory."""
_Bits = npt.NDArray[np.uint64]
# SplitMix64: 2^64 over the golden ratio
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class RowTable:
    """Used by one thread at a time. `slots`: arrays of the table's size that a rule carries."""

    def __init__(self, shape: TableShape, slots: int) -> None:
        if shape.first >= min(shape.stride, shape.rows):
            raise UsageError(f"server {shape.first} of {shape.stride} keeps nothing of a table of {shape.rows} rows")
        self.shape = shape
        self.size = -(-(shape.rows - shape.first) // shape.stride)
        # the operating system gives memory to what is written, so unused rows cost nothing
        self.values = np.zeros((self.size, shape.width), np.float32)
        self.slots = [np.zeros((self.size, shape.width), np.float32) for _ in range(slots)]
        self.used = np.zeros(self.size, np.bool_)

    def check(self, member: str, places: RowNumbers) -> None:
        """PayloadError: a row is none of this server's, or they do not ascend."""
        if not len(places):
            return
        if int(places.min()) < 0 or int(places.max()) >= self.size:
            wrong = places[(places < 0) | (places >= self.size)][0]
            raise PayloadError(f"{member} names row {wrong} of {self.size} that a server keeps of a table")
        if not bool((places[1:] > places[:-1]).all()):
            raise PayloadError(f"{member} names rows of a table that do not ascend")

    def read(self, places: RowNumbers) -> FloatArray:
        """A copy of these rows."""
        self._draw(places[~self.used[places]])
        return self.values[places]

    def _draw(self, places: RowNumbers) -> None:
        step = max(1, DRAWN_AT_ONCE // self.shape.width)
        for at in range(0, len(places), step):
            some = places[at : at + step]
            self.values[some] = draw_rows(self.shape, some * self.shape.stride + self.shape.first)
        self.used[places] = True

    def update(self, rule: ServerRule, places: RowNumbers, update: FloatArray, count: int) -> None:
        """Let a rule change these rows."""
        values, slots = self.read(places), [slot[places] for slot in self.slots]
        rule.apply(values, slots, update, count)
        self._write(places, values, slots)

    def _write(self, places: RowNumbers, values: FloatArray, slots: Sequence[FloatArray]) -> None:
        self.values[places] = values
        for mine, given in zip(self.slots, slots, strict=True):
            mine[places] = given

    def block(self, start: int, stop: int, most: int) -> tuple[RowNumbers, list[FloatArray], int]:
        """The numbers, values and slots of at most `most` used rows from `start` on, and the place to read on from."""
        places = start + np.flatnonzero(self.used[start:stop])[:most]
        following = int(places[-1]) + 1 if len(places) == most else min(stop, self.size)
        numbers = places * self.shape.stride + self.shape.first
        return numbers, [self.values[places], *(slot[places] for slot in self.slots)], following

    def load(self, member: str, places: RowNumbers, arrays: Sequence[FloatArray]) -> None:
        """Rows of a checkpoint. Slots that it does not have begin anew."""
        self.check(member, places)
        if not 1 <= len(arrays) <= 1 + len(self.slots) or any(a.size != len(places) * self.shape.width for a in arrays):
            raise PayloadError(
                f"{member} loads {[a.size for a in arrays]} numbers for {len(places)} rows of {self.shape.width}"
            )
        for mine, given in zip([self.values, *self.slots], arrays, strict=False):
            mine[places] = given.reshape(len(places), self.shape.width)
        self.used[places] = True


def draw_rows(shape: TableShape, rows: RowNumbers) -> FloatArray:
    """The first values of rows by their number in the table: normal, from a counter that is scrambled.

    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011 (counters instead of a stream); the scrambling
    is that of Steele et al., "Fast splittable pseudorandom number generators", OOPSLA 2014; Box & Muller 1958.
    """
    if shape.scale == 0.0:
        return np.zeros((len(rows), shape.width), np.float32)
    columns: _Bits = np.arange(shape.width, dtype=np.uint64)
    counter: _Bits = np.add.outer(rows.astype(np.uint64) * np.uint64(shape.width), columns).astype(np.uint64)
    counter *= np.uint64(_GOLDEN)
    counter += np.uint64(_scramble_seed(shape.seed))
    bits = _scramble(counter)
    # 24 bits for each of the two: what float32 holds exactly
    radius = (bits >> np.uint64(40)).astype(np.float32)
    angle = (bits & np.uint64(0xFFFFFF)).astype(np.float32)
    # + 1, because the logarithm of 0 is not finite
    radius = np.sqrt(np.float32(-2) * np.log((radius + np.float32(1)) * np.float32(2**-24)))
    found: FloatArray = radius * np.cos(angle * np.float32(2 * np.pi * 2**-24)) * np.float32(shape.scale)
    return found


def _scramble(counter: _Bits) -> _Bits:
    # the constants are those of SplitMix64
    counter ^= counter >> np.uint64(30)
    counter *= np.uint64(0xBF58476D1CE4E5B9)
    counter ^= counter >> np.uint64(27)
    counter *= np.uint64(0x94D049BB133111EB)
    counter ^= counter >> np.uint64(31)
    return counter


def _scramble_seed(seed: int) -> int:
    return int(_scramble(np.array([(seed + 1) * _GOLDEN & _MASK], np.uint64))[0])
