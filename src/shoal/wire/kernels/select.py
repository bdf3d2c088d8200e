"""The kernel of sparsifiers: the elements whose magnitude reaches a threshold, in one pass."""

from typing import Any

import numpy as np

SIGNATURES = {
    "select_above": (
        "int64(float32[::1], float32[::1], boolean, float32, int64, int64[::1], float32[::1])",
        False,
    ),
}


def select_above(values: Any, rest: Any, feedback: Any, threshold: Any, first: Any, places: Any, found: Any) -> int:
    """Write place (plus `first`) and value of each; with feedback they are taken out of `rest`. -1: not finite.

    As many as `places` holds; the others stay. Pieces without any are skipped by one vectorised comparison.
    """
    limit = np.empty(1, np.float32)
    limit[0] = threshold
    least = limit.view(np.int32)[0]
    count, room = 0, len(places)
    for begin in range(0, len(values), 32):
        x, left = values[begin : begin + 32], rest[begin : begin + 32]
        if feedback:
            for i in range(len(x)):
                left[i] += x[i]
            x = left
        bits, largest = x.view(np.int32), np.int32(0)
        for i in range(len(x)):
            largest = max(largest, bits[i] & np.int32(0x7FFFFFFF))
        if largest < least:
            continue
        if largest >= np.int32(0x7F800000):
            return -1
        for i in range(len(x)):
            if (bits[i] & np.int32(0x7FFFFFFF)) >= least and count < room:
                places[count] = begin + i + first
                found[count] = x[i]
                count += 1
                if feedback:
                    x[i] = np.float32(0)
    return count
