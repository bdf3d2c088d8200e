"""Kernels that put numbers of a few bits side by side, lowest bit first."""

from typing import Any

import numpy as np

SIGNATURES = {
    "pack_bits": ("void(uint32[::1], int64, uint8[::1])", False),
    "unpack_bits": ("void(uint8[::1], int64, uint32[::1])", False),
}


def pack_bits(numbers: Any, width: Any, out: Any) -> None:
    held, bits, at = np.uint64(0), 0, 0
    for number in numbers:
        held |= np.uint64(number) << np.uint64(bits)
        bits += width
        while bits >= 8:
            out[at] = np.uint8(held & np.uint64(255))
            held >>= np.uint64(8)
            bits -= 8
            at += 1
    if bits > 0:
        out[at] = np.uint8(held & np.uint64(255))


def unpack_bits(data: Any, width: Any, out: Any) -> None:
    held, bits, at = np.uint64(0), 0, 0
    mask = (np.uint64(1) << np.uint64(width)) - np.uint64(1)
    for i in range(len(out)):
        while bits < width:
            held |= np.uint64(data[at]) << np.uint64(bits)
            bits += 8
            at += 1
        out[i] = np.uint32(held & mask)
        held >>= np.uint64(width)
        bits -= width
