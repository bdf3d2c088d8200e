"""The kernels of sparsifiers: the elements whose magnitude reaches a threshold, in one pass, and that threshold."""

from typing import Any

import numpy as np

from shoal.wire.kernels.inline import GROUP, add_into, kth_largest, top_bits, tops_of

SIGNATURES = {
    "select_above": (
        "int64(float32[::1], float32[::1], boolean, float32, int64[::1], float32[::1])",
        False,
    ),
    "kth_magnitude": ("int32(float32[::1], float32[::1], boolean, int64, int64, int64, int64, int32[::1])", False),
}


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
        tops_of(bits, groups, tops)
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


def kth_magnitude(values: Any, rest: Any, feedback: Any, line: Any, first: Any, stride: Any, k: Any, bits: Any) -> Any:
    """The bits of the k-th largest magnitude in lines first, first + stride, … of `values`, or of `values + rest`.

    The k-th largest of the largest of each group is no larger than that, so that few groups have to be looked into.
    `bits` is scratch, as long as all these lines.
    """
    found, count = bits.view(np.float32), 0
    for begin in range(first * line, len(values) - line + 1, stride * line):
        if feedback:
            for i in range(line):
                found[count + i] = values[begin + i] + rest[begin + i]
        else:
            for i in range(line):
                found[count + i] = values[begin + i]
        count += line
    groups = count // GROUP
    if k > groups:
        for i in range(count):
            bits[i] &= np.int32(0x7FFFFFFF)
        return kth_largest(bits, count, k)
    tops = np.empty(groups, np.int32)
    tops_of(bits, groups, tops)
    least = kth_largest(tops.copy(), groups, k)
    kept = 0
    for g in range(groups + 1):
        if g < groups and tops[g] < least:
            continue
        for i in range(g * GROUP, min((g + 1) * GROUP, count)):
            one = bits[i] & np.int32(0x7FFFFFFF)
            if one >= least:
                bits[kept] = one
                kept += 1
    return kth_largest(bits, kept, k)
