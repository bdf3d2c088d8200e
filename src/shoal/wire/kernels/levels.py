"""Kernels of codecs with three levels, two bits an element: 0, +level, -level (codes 0, 1, 2; 3 means nothing)."""

from typing import Any

import numpy as np

SIGNATURES = {
    "largest": ("int32(float32[::1])", False),
    "all_below": ("boolean(int16[::1], int16)", False),
    "fold": ("Tuple((int32, float64))(float32[::1], float32[::1], boolean)", True),
    "pack_levels": ("boolean(float32[::1], float32[::1], boolean, float32, uint8[::1])", False),
    "pack_ternary": (
        "void(float32[::1], float32[::1], boolean, float32, uint32, uint32, int64, uint8[::1])",
        False,
    ),
    "add_levels": ("void(uint8[::1], float32, float32[::1])", False),
    "any_three": ("boolean(uint8[::1])", False),
}


def largest(values: Any) -> Any:
    """The bits of the largest magnitude: as whole numbers they are in the same order, NaN and infinity on top."""
    bits, most = values.view(np.int32), np.int32(0)
    for i in range(len(bits)):
        most = max(most, bits[i] & np.int32(0x7FFFFFFF))
    return most


def all_below(bits: Any, infinite: Any) -> Any:
    """Whether no half-precision number, given as its bits, is infinite or NaN."""
    most = np.int16(0)
    for i in range(len(bits)):
        most = max(most, np.int16(bits[i] & np.int16(0x7FFF)))
    return most < infinite


def fold(values: Any, rest: Any, feedback: Any) -> Any:
    """`rest += values` if there is feedback; the bits of the largest magnitude, and the sum of squares."""
    largest: Any = np.int32(0)
    squares: Any = 0.0
    for begin in range(0, len(values), 4096):
        x, left = values[begin : begin + 4096], rest[begin : begin + 4096]
        if feedback:
            for i in range(len(x)):
                left[i] += x[i]
            x = left
        bits, part = x.view(np.int32), np.float32(0)
        for i in range(len(x)):
            largest = max(largest, bits[i] & np.int32(0x7FFFFFFF))
            part += x[i] * x[i]
        squares += part
    return largest, squares


def pack_levels(values: Any, rest: Any, feedback: Any, level: Any, out: Any) -> Any:
    """+level where the sum is at least that, -level where it is at most minus that; whether all is finite."""
    codes, sums = np.empty(4096, np.uint8), np.empty(4096, np.float32)
    zero, largest = np.float32(0), np.int32(0)
    for begin in range(0, len(values), 4096):
        x, left = values[begin : begin + 4096], rest[begin : begin + 4096]
        for i in range(len(x)):
            sums[i] = x[i]
        if feedback:
            for i in range(len(x)):
                sums[i] += left[i]
        bits = sums.view(np.int32)
        for i in range(len(x)):
            largest = max(largest, bits[i] & np.int32(0x7FFFFFFF))
        for i in range(len(x)):
            codes[i] = np.uint8(sums[i] >= level) | np.uint8(sums[i] <= -level) << np.uint8(1)
        if feedback:
            for i in range(len(x)):
                y = sums[i]
                y -= level if sums[i] >= level else zero
                y += level if sums[i] <= -level else zero
                left[i] = y
        codes[len(x) : len(x) + 3] = 0
        data = out[begin // 4 : (begin + len(x) + 3) // 4]
        for j in range(len(data)):
            data[j] = (
                codes[4 * j] | codes[4 * j + 1] << np.uint8(2) | codes[4 * j + 2] << np.uint8(4)
                | codes[4 * j + 3] << np.uint8(6)
            )  # fmt: skip
    return largest < np.int32(0x7F800000)


def pack_ternary(
    values: Any, rest: Any, feedback: Any, level: Any, word0: Any, word1: Any, first: Any, out: Any
) -> None:
    """Each element becomes ±level with probability |x|/level, else 0. `fold` has added the feedback already."""
    codes = np.empty(4096, np.uint8)
    source = rest if feedback else values
    zero = np.float32(0)
    for begin in range(0, len(values), 4096):
        x = source[begin : begin + 4096]
        key = np.uint32(np.uint32(first + begin) + word0)
        for i in range(len(x)):
            h = np.uint32(np.uint32(i) + key)
            h = np.uint32(h ^ np.uint32(h >> np.uint32(16)))
            h = np.uint32(h * np.uint32(0x21F0AAAD))
            h = np.uint32(h ^ np.uint32(h >> np.uint32(15)))
            h = np.uint32(h * np.uint32(0xD35A2D97))
            h = np.uint32(h ^ np.uint32(h >> np.uint32(15)))
            h = np.uint32(np.uint32(h ^ word1) >> np.uint32(8))
            u = np.float32(np.int32(h)) * (np.float32(2.0**-24) * level)
            codes[i] = np.uint8(u < x[i]) | np.uint8(u < -x[i]) << np.uint8(1)
        if feedback:
            for i in range(len(x)):
                y = x[i]
                y -= level if codes[i] == np.uint8(1) else zero
                y += level if codes[i] == np.uint8(2) else zero
                x[i] = y
        codes[len(x) : len(x) + 3] = 0
        data = out[begin // 4 : (begin + len(x) + 3) // 4]
        for j in range(len(data)):
            data[j] = (
                codes[4 * j] | codes[4 * j + 1] << np.uint8(2) | codes[4 * j + 2] << np.uint8(4)
                | codes[4 * j + 3] << np.uint8(6)
            )  # fmt: skip


def add_levels(data: Any, level: Any, out: Any) -> None:
    table = np.empty((256, 4), np.float32)
    for byte in range(256):
        for q in range(4):
            code = (byte >> (2 * q)) & 3
            table[byte, q] = level if code == 1 else (-level if code == 2 else np.float32(0))
    whole = len(out) // 4
    for j in range(whole):
        byte, k = data[j], 4 * j
        for q in range(4):
            out[k + q] += table[byte, q]
    for i in range(4 * whole, len(out)):
        out[i] += table[data[whole], i - 4 * whole]


def any_three(data: Any) -> Any:
    """Whether a code is 3, which nobody writes."""
    found = np.uint8(0)
    for byte in data:
        found |= byte & (byte >> np.uint8(1)) & np.uint8(0x55)
    return found != 0
