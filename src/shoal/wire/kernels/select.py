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


GROUP = 8
"""Elements that are skipped together: few, for at one in a hundred many groups hold one."""


def select_above(values: Any, rest: Any, feedback: Any, threshold: Any, places: Any, found: Any) -> int:
    """Write place and value of each; with feedback they are taken out of `rest += values`. -1: not finite.

    As many as `places` holds; the others stay. Pieces without any are skipped by one vectorised comparison.
    """
    limit = np.empty(1, np.float32)
    limit[0] = threshold
    least = limit.view(np.int32)[0]
    count, room = 0, len(places)
    tops = np.empty(4096 // GROUP + 1, np.int32)
    for begin in range(0, len(values), 4096):
        x, left = values[begin : begin + 4096], rest[begin : begin + 4096]
        if feedback:
            add_into(left, x)
            x = left
        bits, groups = x.view(np.int32), len(x) // GROUP
        for g in range(groups):
            most = np.int32(0)
            for q in range(GROUP):
                most = max(most, bits[g * GROUP + q] & np.int32(0x7FFFFFFF))
            tops[g] = most
        tops[groups] = top_bits(bits[groups * GROUP :])
        for g in range(groups + 1):
            if tops[g] < least:
                continue
            if tops[g] >= np.int32(0x7F800000):
                return -1
            for i in range(g * GROUP, min((g + 1) * GROUP, len(x))):
                if (bits[i] & np.int32(0x7FFFFFFF)) >= least and count < room:
                    places[count] = begin + i
                    found[count] = x[i]
                    count += 1
                    if feedback:
                        x[i] = np.float32(0)
    return count
