"""The kernel of sparsifiers: the largest elements of every layer of a bucket, in one pass over memory.

What reaches `least` is a candidate; when there are too many, only the largest stay and `least` rises to the smallest of
them. A sample says where to begin, a little too low, so that this is seldom. So what is chosen is exact, whatever the
sample held, and each element is read once, where momentum and residual are brought up to date.
"""

from typing import Any

import numpy as np

from shoal.wire.kernels.flags import flag, flag_added, flag_moved, flagged, take
from shoal.wire.kernels.ranks import LINE, keep_largest, let_go, put_back, sampled

SIGNATURES = {
    "select_largest": (
        "int64(float32[::1], float32[::1], boolean, float32[::1], boolean, float32, boolean, int64[:, ::1], int64, "
        "int64[::1], float32[::1], int32[::1])",
        False,
    ),
}
PIECE = 1024
"""Elements that are brought up to date before they are looked at: three arrays of them stay in the nearest cache."""
TINY, INFINITE = 0x00800000, 0x7F800000
"""Bits of the least magnitude that travels, and of the least that is not finite."""


def select_largest(
    values: Any, rest: Any, feedback: Any, velocity: Any, moving: Any, momentum: Any, masking: Any, rows: Any,
    shift: Any, places: Any, found: Any, bits: Any,
) -> Any:  # fmt: skip
    """Place and value of the largest of each run; how many, -1 where something is not finite.

    A row is a run's (start, end, number wanted, stride of the sample's lines, rank in the sample; 0 for no sample).
    With feedback `rest += values`, and what is chosen is taken out of it; when moving, which feedback is needed for,
    `velocity = momentum * velocity + values` is added instead, and masked where chosen. `places`, `found` and `bits`
    are as long as each other, and hold any run's candidates after what is chosen of the runs before.
    """
    flags, busy, hits = np.empty(PIECE, np.uint8), np.empty(PIECE // 8 + 1, np.int64), np.empty(PIECE + 1, np.int64)
    least = np.empty(1, np.int32)
    limit, whole = least.view(np.float32), rest if feedback else values
    count: Any = 0
    for row in range(rows.shape[0]):
        start, end, wanted, stride, rank = rows[row, 0], rows[row, 1], rows[row, 2], rows[row, 3], rows[row, 4]
        guess, base = np.int32(TINY), count
        if rank > 0:
            first, step = start + shift % stride * LINE, stride * LINE
            guess = sampled(values, rest, feedback, velocity, moving, momentum, first, end, step, rank, bits)
            guess = min(max(guess, np.int32(TINY)), np.int32(INFINITE))
        least[0] = guess
        # The second round only if the sample promised too much; residual and velocity are up to date by then.
        for again in range(2):
            for begin in range(start, end, PIECE):
                stop = min(begin + PIECE, end)
                # Room for one more piece must be left before it is looked at.
                if count + PIECE >= len(places):
                    least[0] = keep_largest(places, found, bits, base, count, wanted, rest, feedback) + np.int32(1)
                    count = base + wanted
                if moving and not again:
                    flag_moved(velocity[begin:stop], momentum, rest[begin:stop], values[begin:stop], limit[0], flags)
                elif feedback and not again:
                    flag_added(rest[begin:stop], values[begin:stop], limit[0], flags)
                else:
                    flag(whole[begin:stop], limit[0], flags)
                number = flagged(flags, stop - begin, busy, hits)
                count = take(whole, begin, hits, number, places, found, count, feedback)
                if count < 0:
                    return -1
            if count - base >= wanted or guess == np.int32(TINY):
                break
            put_back(places, found, base, count, rest, feedback)  # the sample held more of the large ones than its due
            guess, count = np.int32(TINY), base
            least[0] = guess
        if count - base > wanted:
            keep_largest(places, found, bits, base, count, wanted, rest, feedback)
            count = base + wanted
        if moving and masking:
            let_go(velocity, places, base, count)
    return count
