"""Kernels of Golomb's code with a power of two (Rice): the zeros before each ±level as a few bits, then its sign.

A gap of g zeros is g >> shift bits of 0, a 1, the lowest `shift` bits of g, and a bit that is 1 for -level; bits go
lowest first. A last gap, to just behind the end, closes the stream. Codes are two bits an element, as in levels.py.
"""

from typing import Any

import numpy as np

SIGNATURES = {
    "count_levels": ("int64(uint8[::1])", False),
    "pack_rice": ("int64(uint8[::1], int64, int64, uint8[::1])", False),
    "add_rice": ("int64(uint8[::1], int64, float32, float32[::1])", False),
}


def count_levels(data: Any) -> Any:
    """How many codes are not 0: each has one bit."""
    found: Any = 0
    for byte in data:
        pairs = (byte & np.uint8(0x55)) + ((byte >> np.uint8(1)) & np.uint8(0x55))
        fours = (pairs & np.uint8(0x33)) + ((pairs >> np.uint8(2)) & np.uint8(0x33))
        found += np.int64((fours & np.uint8(0x0F)) + (fours >> np.uint8(4)))
    return found


def pack_rice(codes: Any, numel: Any, shift: Any, out: Any) -> int:
    """Bytes written, or -1 if they do not fit into `out`."""
    held, bits, at, gap = np.uint64(0), 0, 0, 0
    mask = (1 << shift) - 1
    for j in range(len(codes) + 1):
        byte = np.int64(codes[j]) if j < len(codes) else 0
        last = j == len(codes)
        if byte == 0 and not last:
            gap += 4
            continue
        for q in range(1 if last else 4):
            code = (byte >> (2 * q)) & 3
            if last:  # the bytes may hold places behind the end
                gap -= 4 * len(codes) - numel
            elif code == 0:
                gap += 1
                continue
            zeros = gap >> shift
            if at + (bits + zeros + shift + 2 + 7) // 8 > len(out):
                return -1
            # A long run leaves in steps that fit the register.
            while zeros >= 32:
                bits += 32
                zeros -= 32
                while bits >= 8:
                    out[at] = np.uint8(held & np.uint64(255))
                    held >>= np.uint64(8)
                    bits -= 8
                    at += 1
            word = 1 | (gap & mask) << 1 | (code >> 1) << (shift + 1)
            held |= np.uint64(word) << np.uint64(bits + zeros)
            bits += zeros + shift + 2
            while bits >= 8:
                out[at] = np.uint8(held & np.uint64(255))
                held >>= np.uint64(8)
                bits -= 8
                at += 1
            gap = 0
    if bits > 0:
        out[at] = np.uint8(held & np.uint64(255))
        at += 1
    return at


def add_rice(data: Any, shift: Any, level: Any, out: Any) -> int:
    """out += what is written; bytes read, or -1 where they end too early or lead outside."""
    held, bits, at, place, numel = np.uint64(0), 0, 0, 0, len(out)
    mask = np.uint64((1 << (shift + 1)) - 1)
    while place <= numel:
        zeros = 0
        while True:
            while bits <= 48 and at < len(data):
                held |= np.uint64(data[at]) << np.uint64(bits)
                bits += 8
                at += 1
            if held != np.uint64(0):
                break
            zeros += bits
            bits = 0
            if at == len(data):
                return -1
        while held & np.uint64(255) == np.uint64(0):
            held >>= np.uint64(8)
            bits -= 8
            zeros += 8
        while held & np.uint64(1) == np.uint64(0):
            held >>= np.uint64(1)
            bits -= 1
            zeros += 1
        while bits <= 48 and at < len(data):
            held |= np.uint64(data[at]) << np.uint64(bits)
            bits += 8
            at += 1
        if bits < shift + 2:
            return -1
        word = (held >> np.uint64(1)) & mask
        held >>= np.uint64(shift + 2)
        bits -= shift + 2
        down = word >> np.uint64(shift)
        place += (zeros << shift) + np.int64(word & (mask >> np.uint64(1)))
        if place >= numel:
            break
        out[place] += -level if down != np.uint64(0) else level
        place += 1
    return at - bits // 8 if place == numel and held == np.uint64(0) else -1
