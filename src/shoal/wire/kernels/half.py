"""Kernels of casts: 32 bits to 16 and back, to the nearest even; each piece is read from memory once.

fp16 takes the processor's own conversion and a scale per piece; bf16 is the upper half of a float32, rounded.
"""

from typing import Any

import numpy as np

from shoal.wire.kernels.inline import from_half, to_half, top_bits

SIGNATURES = {
    "pack_fp16": ("boolean(float32[::1], float32[::1], int64, int16[::1])", False),
    "pack_bf16": ("boolean(float32[::1], uint16[::1])", False),
    "add_fp16": ("boolean(int16[::1], float32[::1], int64, float32, float32[::1])", False),
    "add_bf16": ("boolean(int16[::1], float32, float32[::1])", False),
}


def pack_fp16(values: Any, scales: Any, piece: Any, out: Any) -> Any:
    """Each piece's largest value is scaled to just below 2^15, by a power of two; whether all is finite."""
    power = np.empty(1, np.int32)
    for number in range(len(scales)):
        x, half = values[number * piece : (number + 1) * piece], out[number * piece : (number + 1) * piece]
        most = top_bits(x.view(np.int32))
        if most >= np.int32(0x7F800000):
            return False
        # 2^(15 - e) of a largest value in [2^(e-1), 2^e), held within 2^-100 and 2^100; 1 for zeros
        e = (most >> np.int32(23)) - np.int32(126)
        exponent = min(max(np.int32(15) - e, np.int32(-100)), np.int32(100)) if most > 0 else np.int32(0)
        power[0] = (exponent + np.int32(127)) << np.int32(23)
        scale = power.view(np.float32)[0]
        scales[number] = scale
        for i in range(len(x)):
            half[i] = to_half(x[i] * scale)
    return True


def pack_bf16(values: Any, out: Any) -> Any:
    """Return whether all values are finite."""
    most = np.uint32(0)
    for begin in range(0, len(values), 4096):
        bits, half = values[begin : begin + 4096].view(np.uint32), out[begin : begin + 4096]
        for i in range(len(bits)):
            most = max(most, np.uint32(bits[i] & np.uint32(0x7FFFFFFF)))
            # Round half to even: add 0x7FFF, and 1 more where the last kept bit is odd.
            even = np.uint32(np.uint32(bits[i] >> np.uint32(16)) & np.uint32(1))
            rounded = np.uint32(np.uint32(bits[i] + even) + np.uint32(0x7FFF))
            half[i] = np.uint16(np.uint32(rounded >> np.uint32(16)))
    return most < np.uint32(0x7F800000)


def add_fp16(data: Any, scales: Any, piece: Any, sign: Any, out: Any) -> Any:
    """out += sign * value / scale, `sign` 1 or -1; whether all was finite."""
    most = np.int16(0)
    for number in range(len(scales)):
        half, place = data[number * piece : (number + 1) * piece], out[number * piece : (number + 1) * piece]
        inverse = sign / scales[number]
        for i in range(len(half)):
            most = max(most, np.int16(half[i] & np.int16(0x7FFF)))
        for i in range(len(half)):
            place[i] += from_half(half[i]) * inverse
    return most < np.int16(0x7C00)


def add_bf16(data: Any, sign: Any, out: Any) -> Any:
    """out += sign * value; whether all was finite."""
    wide, most = np.empty(4096, np.int32), np.int16(0)
    for begin in range(0, len(data), 4096):
        half, place = data[begin : begin + 4096], out[begin : begin + 4096]
        for i in range(len(half)):
            most = max(most, np.int16(half[i] & np.int16(0x7FFF)))
            wide[i] = np.int32(half[i]) << np.int32(16)
        found = wide.view(np.float32)
        for i in range(len(half)):
            place[i] += found[i] * sign
    return most < np.int16(0x7F80)
