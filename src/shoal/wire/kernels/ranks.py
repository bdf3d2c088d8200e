"""Pieces of the kernel that chooses: how large an element must be, and what is kept of those that seemed to be.

As those of inline.py they are put into the kernel; each may use those before it.
"""

from typing import Any

import numpy as np

NAMES = ("kth_largest", "sampled", "keep_largest", "put_back", "let_go")
LINE = 16
"""Elements of a line of a cache, which a sample takes together: one of them costs as much."""


def kth_largest(numbers: Any, count: Any, k: Any) -> Any:
    """Of the first `count`, none below 0: ten or eleven bits at a time. They are moved about."""
    # A radix search: three passes over ever fewer numbers instead of a sort.
    bins = np.empty(2048, np.int32)
    found, rank = np.int32(0), k
    for shift, width in ((20, 11), (10, 10), (0, 10)):
        bins[:] = 0
        mask = np.int32((1 << width) - 1)
        for i in range(count):
            bins[(numbers[i] >> np.int32(shift)) & mask] += 1
        digit = (1 << width) - 1
        while bins[digit] < rank:
            rank -= bins[digit]
            digit -= 1
        found |= np.int32(digit << shift)
        kept: Any = 0
        for i in range(count):
            number = numbers[i]
            numbers[kept] = number
            kept += np.int64(((number >> np.int32(shift)) & mask) == digit)
        count = kept
    return found


def sampled(
    values: Any, rest: Any, feedback: Any, velocity: Any, moving: Any, momentum: Any, first: Any, end: Any, step: Any,
    rank: Any, bits: Any,
) -> Any:  # fmt: skip
    """The bits of the magnitude of this rank in lines of what will be chosen from; `bits` is scratch."""
    drawn, size = bits.view(np.float32), 0
    for begin in range(first, end - LINE + 1, step):
        for i in range(LINE):
            drawn[size + i] = values[begin + i]
        if moving:
            for i in range(LINE):
                drawn[size + i] += momentum * velocity[begin + i]
        if feedback:
            for i in range(LINE):
                drawn[size + i] += rest[begin + i]
        size += LINE
    for i in range(size):
        bits[i] &= np.int32(0x7FFFFFFF)
    return kth_largest(bits, size, min(rank, size))


def keep_largest(
    places: Any, found: Any, bits: Any, base: Any, count: Any, wanted: Any, rest: Any, feedback: Any
) -> Any:
    """Of what is found from `base` to `count`, keep the `wanted` largest, of equal ones the first; bits of the least.

    With feedback the others go back. `bits` is scratch.
    """
    magnitudes = found.view(np.int32)
    for i in range(count - base):
        bits[i] = magnitudes[base + i] & np.int32(0x7FFFFFFF)
    least = kth_largest(bits, count - base, wanted)
    spare = wanted
    for i in range(base, count):
        spare -= np.int64((magnitudes[i] & np.int32(0x7FFFFFFF)) > least)
    kept = base
    for i in range(base, count):
        one, place, value = magnitudes[i] & np.int32(0x7FFFFFFF), places[i], found[i]
        stays = (one > least) | ((one == least) & (spare > 0))
        spare -= np.int64(one == least)
        places[kept], found[kept] = place, value
        kept += np.int64(stays)
        if feedback and not stays:
            rest[place] = value
    return least


def put_back(places: Any, found: Any, base: Any, count: Any, rest: Any, feedback: Any) -> None:
    if feedback:
        for i in range(base, count):
            rest[places[i]] = found[i]


def let_go(velocity: Any, places: Any, base: Any, count: Any) -> None:
    for i in range(base, count):
        velocity[places[i]] = np.float32(0)
