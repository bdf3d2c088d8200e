"""Kernels of codecs with a scale per block: sign bits with two means, and 8-bit integers.

`table` holds rows (start, end, first byte) of blocks. With `feedback`, `rest += values` is encoded and `rest` becomes
what is left; otherwise `rest` is not touched. Returns -1, or the block in which a number is not finite; then `rest`
holds the sum in the blocks before and in this one, and the run is over.
"""

from typing import Any

import numpy as np

from shoal.wire.kernels.inline import add_into, eights, noise, one_each, top_bits

SIGNATURES = {
    "pack_signs": ("int64(float32[::1], float32[::1], boolean, int64[:, ::1], float32[:, ::1], uint8[::1])", True),
    "add_signs": ("void(uint8[::1], float32[:, ::1], int64[:, ::1], boolean, float32[::1])", False),
    "pack_int8": (
        "int64(float32[::1], float32[::1], boolean, int64[:, ::1], uint32, uint32, float32[::1], int8[::1])",
        False,
    ),
    "add_int8": ("void(int8[::1], float32[::1], int64[:, ::1], boolean, float32[::1])", False),
}


def pack_signs(values: Any, rest: Any, feedback: Any, table: Any, means: Any, out: Any) -> int:
    """Per block the mean of either side and one bit an element; `means` gets (of the negative, of the others)."""
    zero, one = np.float32(0), np.float32(1)
    codes = np.empty(4096 + 8, np.uint8)
    for b in range(table.shape[0] - 1):
        start, end, at = table[b, 0], table[b, 1], table[b, 2]
        x, left = values[start:end], rest[start:end]
        if feedback:
            add_into(left, x)
            x = left
        total, magnitude, above = zero, zero, zero
        for i in range(len(x)):
            total += x[i]
            magnitude += abs(x[i])
            # Counted in float32: one kind of number in the loop keeps it vectorised, and blocks are below 2^24.
            above += one if x[i] >= zero else zero
        if not np.isfinite(magnitude):
            return b
        below = np.float32(len(x)) - above
        # sum|x| + sum x is twice the positive side, and their difference twice the negative: no branch an element.
        high = np.float32(0.5) * (magnitude + total) / max(above, one)
        low = np.float32(0.5) * (total - magnitude) / max(below, one)
        means[b, 0], means[b, 1] = low, high
        for begin in range(0, len(x), 4096):
            y = x[begin : begin + 4096]
            for i in range(len(y)):
                codes[i] = np.uint8(y[i] >= zero)
            if feedback:
                for i in range(len(y)):
                    y[i] -= high if y[i] >= zero else low
            eights(codes, len(y), out[at + begin // 8 : at + (begin + len(y) + 7) // 8])
    return -1


def add_signs(data: Any, means: Any, table: Any, fresh: Any, out: Any) -> None:
    """Added to `out`; when fresh, in place of what it holds."""
    codes = np.empty(4096, np.uint8)
    for b in range(table.shape[0] - 1):
        low, high = means[b, 0], means[b, 1]
        place, at = out[table[b, 0] : table[b, 1]], table[b, 2]
        for begin in range(0, len(place), 4096):
            y = place[begin : begin + 4096]
            one_each(data[at + begin // 8 : at + (begin + len(y) + 7) // 8], codes)
            if fresh:
                for i in range(len(y)):
                    y[i] = high if codes[i] != np.uint8(0) else low
            else:
                for i in range(len(y)):
                    y[i] += high if codes[i] != np.uint8(0) else low


def pack_int8(values: Any, rest: Any, feedback: Any, table: Any, word0: Any, word1: Any, scales: Any, out: Any) -> int:
    """Per block the scale largest/127 and one byte an element, rounded up or down at random."""
    word = np.empty(1, np.int32)
    for b in range(table.shape[0] - 1):
        start, end = table[b, 0], table[b, 1]
        x, left, codes = values[start:end], rest[start:end], out[start:end]
        if feedback:
            add_into(left, x)
            x = left
        word[0] = top_bits(x.view(np.int32))
        if word[0] >= np.int32(0x7F800000):
            return b
        amax = word.view(np.float32)[0]
        large = amax > np.float32(1e-30)
        scale = amax / np.float32(127) if large else np.float32(0)
        inverse = np.float32(127) / amax if large else np.float32(0)
        scales[b] = scale
        # The place in the bucket, not in the block, so that blocks of equal values are rounded differently.
        key = np.uint32(np.uint32(start) + word0)
        for i in range(len(x)):
            u = noise(np.uint32(np.uint32(i) + key), word1) * np.float32(2.0**-24)
            y = np.floor(x[i] * inverse + u)
            codes[i] = np.int8(np.int32(min(max(y, np.float32(-127)), np.float32(127))))
        if feedback:
            for i in range(len(left)):
                left[i] -= np.float32(codes[i]) * scale
    return -1


def add_int8(data: Any, scales: Any, table: Any, fresh: Any, out: Any) -> None:
    """As add_signs."""
    for b in range(table.shape[0] - 1):
        start, end, scale = table[b, 0], table[b, 1], scales[b]
        codes, place = data[start:end], out[start:end]
        if fresh:
            for i in range(len(place)):
                place[i] = np.float32(codes[i]) * scale
        else:
            for i in range(len(place)):
                place[i] += np.float32(codes[i]) * scale
