"""Kernels of codecs with a scale per block: sign bits with two means, and 8-bit integers.

`table` holds rows (start, end, first byte) of blocks. With `feedback`, `rest += values` is encoded and `rest` becomes
what is left; otherwise `rest` is not touched. Returns -1, or the block in which a number is not finite; then `rest`
holds the sum in the blocks before and in this one, and the run is over.
"""

from typing import Any

import numpy as np

SIGNATURES = {
    "pack_signs": ("int64(float32[::1], float32[::1], boolean, int64[:, ::1], float32[:, ::1], uint8[::1])", True),
    "add_signs": ("void(uint8[::1], float32[:, ::1], int64[:, ::1], float32[::1])", False),
    "pack_int8": (
        "int64(float32[::1], float32[::1], boolean, int64[:, ::1], uint32, uint32, float32[::1], int8[::1])",
        False,
    ),
    "add_int8": ("void(int8[::1], float32[::1], int64[:, ::1], float32[::1])", False),
}


def pack_signs(values: Any, rest: Any, feedback: Any, table: Any, means: Any, out: Any) -> int:
    """Per block the mean of either side and one bit an element; `means` gets (of the negative, of the others)."""
    zero, one = np.float32(0), np.float32(1)
    for b in range(table.shape[0] - 1):
        start, end, at = table[b, 0], table[b, 1], table[b, 2]
        x, left = values[start:end], rest[start:end]
        if feedback:
            for i in range(len(x)):
                left[i] += x[i]
            x = left
        total, magnitude, above = zero, zero, zero
        for i in range(len(x)):
            total += x[i]
            magnitude += abs(x[i])
            above += one if x[i] >= zero else zero
        if not np.isfinite(magnitude):
            return b
        below = np.float32(len(x)) - above
        high = np.float32(0.5) * (magnitude + total) / max(above, one)
        low = np.float32(0.5) * (total - magnitude) / max(below, one)
        means[b, 0], means[b, 1] = low, high
        whole = len(x) // 8
        signs = out[at : at + whole + 1]
        for j in range(whole):
            byte = np.uint8(0)
            for q in range(8):
                byte |= np.uint8(x[8 * j + q] >= zero) << np.uint8(q)
            signs[j] = byte
        if 8 * whole < len(x):
            byte = np.uint8(0)
            for q in range(len(x) - 8 * whole):
                byte |= np.uint8(x[8 * whole + q] >= zero) << np.uint8(q)
            signs[whole] = byte
        if feedback:
            for i in range(len(left)):
                left[i] -= high if left[i] >= zero else low
    return -1


def add_signs(data: Any, means: Any, table: Any, out: Any) -> None:
    for b in range(table.shape[0] - 1):
        low, high = means[b, 0], means[b, 1]
        place, at = out[table[b, 0] : table[b, 1]], table[b, 2]
        whole = len(place) // 8
        signs = data[at : at + whole + 1]
        for j in range(whole):
            byte = signs[j]
            for q in range(8):
                place[8 * j + q] += high if (byte >> np.uint8(q)) & np.uint8(1) else low
        for q in range(len(place) - 8 * whole):
            place[8 * whole + q] += high if (signs[whole] >> np.uint8(q)) & np.uint8(1) else low


def pack_int8(values: Any, rest: Any, feedback: Any, table: Any, word0: Any, word1: Any, scales: Any, out: Any) -> int:
    """Per block the scale largest/127 and one byte an element, rounded up or down at random."""
    word = np.empty(1, np.int32)
    for b in range(table.shape[0] - 1):
        start, end = table[b, 0], table[b, 1]
        x, left, codes = values[start:end], rest[start:end], out[start:end]
        if feedback:
            for i in range(len(x)):
                left[i] += x[i]
            x = left
        bits, largest = x.view(np.int32), np.int32(0)
        for i in range(len(x)):
            largest = max(largest, bits[i] & np.int32(0x7FFFFFFF))
        if largest >= np.int32(0x7F800000):
            return b
        word[0] = largest
        amax = word.view(np.float32)[0]
        large = amax > np.float32(1e-30)
        scale = amax / np.float32(127) if large else np.float32(0)
        inverse = np.float32(127) / amax if large else np.float32(0)
        scales[b] = scale
        key = np.uint32(np.uint32(start) + word0)
        for i in range(len(x)):
            h = np.uint32(np.uint32(i) + key)
            h = np.uint32(h ^ np.uint32(h >> np.uint32(16)))
            h = np.uint32(h * np.uint32(0x21F0AAAD))
            h = np.uint32(h ^ np.uint32(h >> np.uint32(15)))
            h = np.uint32(h * np.uint32(0xD35A2D97))
            h = np.uint32(h ^ np.uint32(h >> np.uint32(15)))
            h = np.uint32(np.uint32(h ^ word1) >> np.uint32(8))
            u = np.float32(np.int32(h)) * np.float32(2.0**-24)
            y = np.floor(x[i] * inverse + u)
            codes[i] = np.int8(np.int32(min(max(y, np.float32(-127)), np.float32(127))))
        if feedback:
            for i in range(len(left)):
                left[i] -= np.float32(codes[i]) * scale
    return -1


def add_int8(data: Any, scales: Any, table: Any, out: Any) -> None:
    for b in range(table.shape[0] - 1):
        start, end, scale = table[b, 0], table[b, 1], scales[b]
        codes, place = data[start:end], out[start:end]
        for i in range(len(place)):
            place[i] += np.float32(codes[i]) * scale
