"""Kernels of codecs with three levels, two bits an element: 0, +level, -level (codes 0, 1, 2; 3 means nothing).

With `feedback`, `rest += values` is encoded and `rest` becomes what is left; otherwise `rest` is not touched.
"""

from typing import Any

import numpy as np

from shoal.wire.kernels.inline import add_into, fours, noise, signs, top_bits

SIGNATURES = {
    "largest": ("int32(float32[::1])", False),
    "measure": ("Tuple((int32, float64))(float32[::1], float32[::1], boolean)", True),
    "pack_levels": ("boolean(float32[::1], float32[::1], boolean, float32, uint8[::1])", True),
    "pack_ternary": (
        "boolean(float32[::1], float32[::1], boolean, float32, uint32, uint32, int64, uint8[::1])",
        True,
    ),
    "add_levels": ("void(uint8[::1], float32, float32[::1])", False),
    "any_three": ("boolean(uint8[::1])", False),
}


def largest(values: Any) -> Any:
    """The bits of the largest magnitude."""
    return top_bits(values.view(np.int32))


def measure(values: Any, rest: Any, feedback: Any) -> Any:
    """The bits of the largest magnitude, and the sum of squares, of what will be encoded."""
    most: Any = np.int32(0)
    squares: Any = 0.0
    sums = np.empty(4096, np.float32)
    for begin in range(0, len(values), 4096):
        x = values[begin : begin + 4096]
        if feedback:
            y = sums[: len(x)]
            y[:] = x
            add_into(y, rest[begin : begin + 4096])
            x = y
        most = max(most, top_bits(x.view(np.int32)))
        part = np.float32(0)
        for i in range(len(x)):
            part += x[i] * x[i]
        # Pieces in float32, their sum in double: fast, and exact enough for millions of elements.
        squares += part
    return most, squares


def pack_levels(values: Any, rest: Any, feedback: Any, level: Any, out: Any) -> Any:
    """+level where the sum is at least that, -level where it is at most minus that; whether all is finite."""
    codes, sent = np.empty(4096 + 4, np.uint8), np.empty(4096, np.float32)
    zero, bad = np.float32(0), np.float32(0)  # a number that is not finite times 0 is NaN
    for begin in range(0, len(values), 4096):
        x, left = values[begin : begin + 4096], rest[begin : begin + 4096]
        if feedback:
            for i in range(len(x)):
                y = left[i] + x[i]
                bad += y * zero
                z = level if y >= level else (-level if y <= -level else zero)
                sent[i] = z
                left[i] = y - z
        else:
            for i in range(len(x)):
                bad += x[i] * zero
                sent[i] = level if x[i] >= level else (-level if x[i] <= -level else zero)
        signs(sent, codes, len(x))
        fours(codes, len(x), out[begin // 4 : (begin + len(x) + 3) // 4])
    return bad == zero


def pack_ternary(
    values: Any, rest: Any, feedback: Any, level: Any, word0: Any, word1: Any, first: Any, out: Any
) -> Any:
    """Each element becomes ±level with probability |x|/level, else 0; whether all is finite."""
    codes, sent = np.empty(4096 + 4, np.uint8), np.empty(4096, np.float32)
    zero, bad, unit = np.float32(0), np.float32(0), np.float32(2.0**-24) * level
    for begin in range(0, len(values), 4096):
        x, left = values[begin : begin + 4096], rest[begin : begin + 4096]
        key = np.uint32(np.uint32(first + begin) + word0)
        if feedback:
            for i in range(len(x)):
                u = noise(np.uint32(np.uint32(i) + key), word1) * unit
                y = left[i] + x[i]
                bad += y * zero
                z = level if u < y else (-level if u < -y else zero)
                sent[i] = z
                left[i] = y - z
        else:
            for i in range(len(x)):
                u = noise(np.uint32(np.uint32(i) + key), word1) * unit
                bad += x[i] * zero
                sent[i] = level if u < x[i] else (-level if u < -x[i] else zero)
        signs(sent, codes, len(x))
        fours(codes, len(x), out[begin // 4 : (begin + len(x) + 3) // 4])
    return bad == zero


def add_levels(data: Any, level: Any, out: Any) -> None:
    # Four elements a byte by table: decoding shifts and compares nothing.
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
    """Return whether a code is 3, which no encoder writes."""
    found = np.uint8(0)
    for byte in data:
        found |= byte & (byte >> np.uint8(1)) & np.uint8(0x55)
    return found != 0
