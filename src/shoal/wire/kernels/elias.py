"""Kernels of QSGD: stochastic levels against a block's norm, written in Elias' gamma code.

A zero is the bit 1; a level n >= 1 is the gamma code of n + 1 followed by its sign. Bits go lowest first.
"""

from typing import Any

import numpy as np

SIGNATURES = {
    "pack_gamma": ("int64(int32[::1], uint8[::1])", False),
    "unpack_gamma": ("int64(uint8[::1], int64, int32[::1])", False),
}


def pack_gamma(levels: Any, out: Any) -> int:
    """Bytes written; `out` must be zero."""
    at = 0
    for level in levels:
        number = abs(level) + 1
        length = 0
        while number >> (length + 1):
            length += 1
        at += length  # that many zeros
        for q in range(length, -1, -1):
            if (number >> q) & 1:
                out[at >> 3] |= np.uint8(1 << (at & 7))
            at += 1
        if level != 0:
            if level < 0:
                out[at >> 3] |= np.uint8(1 << (at & 7))
            at += 1
    return (at + 7) >> 3


def unpack_gamma(data: Any, most: Any, levels: Any) -> int:
    """Bytes read, or -1 where the bits end too early or a level is above `most`."""
    at, total = 0, 8 * len(data)
    for i in range(len(levels)):
        length = 0
        while at < total and not (data[at >> 3] >> (at & 7)) & 1:
            length += 1
            at += 1
        # 20: far above the longest code of 8 bits; a run of zeros must not make a shift overflow.
        if length > 20 or at + length + 1 + (length > 0) > total:
            return -1
        number = 0
        for _ in range(length + 1):
            number = 2 * number + int((data[at >> 3] >> (at & 7)) & 1)
            at += 1
        level = number - 1
        if level > most:
            return -1
        if level != 0:
            if (data[at >> 3] >> (at & 7)) & 1:
                level = -level
            at += 1
        levels[i] = level
    return (at + 7) >> 3
