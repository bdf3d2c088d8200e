"""The positions of layers in a flat tensor of gradients, for codecs that work layer by layer.

Plain data, the same on every worker; tables for kernels are made once and kept.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LayoutPart:
    """One layer's tensor in the flat one."""

    name: str
    offset: int
    shape: tuple[int, ...]

    @cached_property
    def numel(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def end(self) -> int:
        return self.offset + self.numel

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns: the first dimension, and all others as one."""
        return (self.shape[0], self.numel // self.shape[0]) if self.shape and self.shape[0] else (0, 0)


@dataclass(frozen=True)
class FlatLayout:
    """Parts side by side, without gaps, from 0."""

    parts: tuple[LayoutPart, ...]
    _tables: dict[tuple[int, int], Table] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def numel(self) -> int:
        return self.parts[-1].end if self.parts else 0

    @cached_property
    def _hash(self) -> int:
        return hash(self.parts)

    def __hash__(self) -> int:
        """Hash once, because codec state is looked up by layout at every step, and there may be hundreds of parts."""
        return self._hash

    @classmethod
    def of(cls, shapes: Sequence[tuple[str, Sequence[int]]]) -> "FlatLayout":
        parts, offset = [], 0
        for name, shape in shapes:
            parts.append(LayoutPart(name, offset, tuple(shape)))
            offset = parts[-1].end
        return cls(tuple(parts))

    @classmethod
    def flat(cls, numel: int, name: str = "values") -> "FlatLayout":
        return cls.of([(name, (numel,))])

    def blocks(self, size: int, bits: int) -> Table:
        """Rows (start, end, first byte): pieces of at most `size` elements that never span two parts.

        Each piece's codes of `bits` bits begin at a byte of their own; the last row's start is the total of bytes.
        """
        if (size, bits) not in self._tables:
            rows, at = [], 0
            for part in self.parts:
                for start in range(part.offset, part.end, size):
                    end = min(start + size, part.end)
                    rows.append((start, end, at))
                    # Whole bytes for each block, so that blocks can be written without regard to each other.
                    at += -(-(end - start) * bits // 8)
            self._tables[size, bits] = np.array([*rows, (at, at, at)], np.int64).reshape(-1, 3)
        return self._tables[size, bits]

    def name_at(self, index: int) -> str:
        """The layer that element `index` belongs to."""
        return next((part.name for part in self.parts if part.offset <= index < part.end), "?")
