"""Kernels that put numbers of a few bits side by side, lowest bit first, and places as Elias and Fano did."""

from typing import Any

import numpy as np

SIGNATURES = {
    "pack_bits": ("void(uint32[::1], int64, uint8[::1])", False),
    "unpack_bits": ("void(uint8[::1], int64, uint32[::1])", False),
    "write_places": ("void(int64[::1], int64, int64, uint8[::1])", False),
    "read_places": ("int64(uint8[::1], int64, int64, int64[::1])", False),
    "add_at": ("void(int64[::1], float32[::1], float32[::1])", False),
}


def write_places(places: Any, low: Any, split: Any, out: Any) -> None:
    """Ascending places: the `low` lower bits of each side by side in `split` bytes, then the upper ones.

    Of those, number i sets bit (place >> low) + i.
    """
    out[split:] = 0
    # At most 7 bits wait when the next number of up to 32 comes, so 64 hold both.
    held, bits, to = np.uint64(0), 0, 0
    mask = (np.int64(1) << low) - np.int64(1)
    for i in range(len(places)):
        held |= np.uint64(places[i] & mask) << np.uint64(bits)
        bits += low
        while bits >= 8:
            out[to] = np.uint8(held & np.uint64(255))
            held >>= np.uint64(8)
            bits -= 8
            to += 1
        at = (places[i] >> low) + i
        out[split + (at >> 3)] |= np.uint8(1 << (at & 7))
    if bits > 0:
        out[to] = np.uint8(held & np.uint64(255))


def read_places(data: Any, low: Any, split: Any, places: Any) -> Any:
    """What `write_places` wrote; how many there are, whatever fits, or -1 where as many as fit do not ascend."""
    held, bits, at, count, last, ascend = np.uint64(0), 0, 0, 0, np.int64(-1), True
    mask = (np.uint64(1) << np.uint64(low)) - np.uint64(1)
    for j in range(split, len(data)):
        byte = data[j]
        while byte != 0:
            bit = 0
            while ((byte >> np.uint8(bit)) & np.uint8(1)) == 0:
                bit += 1
            # Clears the lowest set bit.
            byte &= byte - np.uint8(1)
            # Counted on even when full, so that the caller can say how many there were.
            if count < len(places):
                while bits < low:
                    held |= np.uint64(data[at]) << np.uint64(bits)
                    bits += 8
                    at += 1
                place = np.int64(8 * (j - split) + bit - count) << low | np.int64(held & mask)
                held >>= np.uint64(low)
                bits -= low
                ascend &= place > last
                places[count] = last = place
            count += 1
    return count if ascend or count != len(places) else -1


def add_at(places: Any, values: Any, out: Any) -> None:
    """out[place] += value; places are known to lie inside, each once."""
    for i in range(len(places)):
        out[places[i]] += values[i]


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
