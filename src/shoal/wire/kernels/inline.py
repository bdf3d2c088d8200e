"""Pieces that several kernels share; the compiler puts them into each kernel, so that its loops stay whole.

A call costs nothing when compiled, and the plain function serves where numba is missing. Only scalars and flat arrays.
"""

from typing import Any

import numpy as np

NAMES = ("add_into", "top_bits", "noise", "signs", "eights", "one_each", "fours")
CONVERSIONS = ("to_half", "from_half")
"""These are one instruction of the processor when compiled (instructions.py)."""


def add_into(left: Any, x: Any) -> None:
    for i in range(len(left)):
        left[i] += x[i]


def top_bits(bits: Any) -> Any:
    """The bits of the largest magnitude: as whole numbers they are in the same order, NaN and infinity on top."""
    most = np.int32(0)
    for i in range(len(bits)):
        most = max(most, bits[i] & np.int32(0x7FFFFFFF))
    return most


def noise(place: Any, word: Any) -> Any:
    """24 random bits as a float32: the hash of `encode_context`, of a place that the first word was added to."""
    h = np.uint32(place ^ np.uint32(place >> np.uint32(16)))
    h = np.uint32(h * np.uint32(0x21F0AAAD))
    h = np.uint32(h ^ np.uint32(h >> np.uint32(15)))
    h = np.uint32(h * np.uint32(0xD35A2D97))
    h = np.uint32(h ^ np.uint32(h >> np.uint32(15)))
    # Through int32: processors convert signed numbers in one instruction, unsigned ones in several.
    return np.float32(np.int32(np.uint32(np.uint32(h ^ word) >> np.uint32(8))))


def signs(sent: Any, codes: Any, count: Any) -> None:
    """Codes of levels: 1 above zero, 2 below, else 0."""
    zero = np.float32(0)
    for i in range(count):
        codes[i] = np.uint8(sent[i] > zero) | np.uint8(sent[i] < zero) << np.uint8(1)


def eights(codes: Any, count: Any, data: Any) -> None:
    """The first `count` codes (0 or 1, a byte each) as bits, lowest first; `codes` has room for 7 more."""
    codes[count : count + 7] = 0
    words = codes.view(np.uint64)
    for j in range(len(data)):
        # byte i of a word times 2^(56 - 7 i) is bit 56 + i, and no two products fall on one bit
        data[j] = np.uint8((words[j] * np.uint64(0x0102040810204080)) >> np.uint64(56))


def one_each(data: Any, codes: Any) -> None:
    """A byte for each bit, lowest first: something other than 0 where it is set; `codes` has room for eight a byte."""
    words = codes.view(np.uint64)
    for j in range(len(data)):
        words[j] = (np.uint64(data[j]) * np.uint64(0x0101010101010101)) & np.uint64(0x8040201008040201)


def fours(codes: Any, count: Any, data: Any) -> None:
    """The first `count` codes (below 4, a byte each) as two bits, lowest first; `codes` has room for 3 more."""
    codes[count : count + 3] = 0
    words = codes.view(np.uint32)
    for j in range(len(data)):
        # byte i of a word times 2^(24 - 6 i) is bits 24 + 2 i and the next, and no two products fall on one bit
        data[j] = np.uint8(np.uint32(words[j] * np.uint32(0x01041040)) >> np.uint32(24))


def to_half(value: Any) -> Any:
    """The bits of a float32 as fp16, to the nearest even."""
    return np.float32(value).astype(np.float16).view(np.int16)


def from_half(bits: Any) -> Any:
    return np.float32(np.int16(bits).view(np.float16))
