"""The kernel of sparsifiers: the elements whose magnitude reaches a threshold, in one pass."""

from typing import Any

import numpy as np

from shoal.wire.kernels.inline import add_into, top_bits

SIGNATURES = {
    "select_above": (
        "int64(float32[::1], float32[::1], boolean, float32, int64[::1], float32[::1])",
        False,
    ),
}


def select_above(values: Any, rest: Any, feedback: Any, threshold: Any, places: Any, found: Any) -> int:
    """Write place and value of each; with feedback they are taken out of `rest += values`. -1: not finite.

    As many as `places` holds; the others stay. Pieces without any are skipped by one vectorised comparison.
    """
    limit = np.empty(1, np.float32)
    limit[0] = threshold
    least = limit.view(np.int32)[0]
    count, room = 0, len(places)
    for begin in range(0, len(values), 2048):
        x, left = values[begin : begin + 2048], rest[begin : begin + 2048]
        if feedback:
            add_into(left, x)
            x = left
        bits = x.view(np.int32)
        for start in range(0, len(x), 32):
            piece = bits[start : start + 32]
            most = top_bits(piece)
            if most < least:
                continue
            if most >= np.int32(0x7F800000):
                return -1
            for i in range(len(piece)):
                if (piece[i] & np.int32(0x7FFFFFFF)) >= least and count < room:
                    places[count] = begin + start + i
                    found[count] = x[start + i]
                    count += 1
                    if feedback:
                        x[start + i] = np.float32(0)
    return count
