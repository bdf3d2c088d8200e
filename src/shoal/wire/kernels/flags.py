"""Pieces of the kernel that chooses: which elements are large enough, told and taken without a branch an element.

As those of inline.py they are put into the kernel; each may use those before it.
"""

from typing import Any

import numpy as np

NAMES = ("flag", "flag_added", "flag_moved", "flagged", "take")


def flag(x: Any, limit: Any, flags: Any) -> None:
    """1 where a magnitude reaches the limit or is no number, else 0."""
    for i in range(len(x)):
        # Not `>=`: NaN compares false with everything, and must be flagged to be noticed.
        flags[i] = np.uint8(not (abs(x[i]) < limit))


def flag_added(left: Any, x: Any, limit: Any, flags: Any) -> None:
    """The same of left += x."""
    for i in range(len(left)):
        y = left[i] + x[i]
        left[i] = y
        flags[i] = np.uint8(not (abs(y) < limit))


def flag_moved(velocity: Any, momentum: Any, left: Any, x: Any, limit: Any, flags: Any) -> None:
    """The same of left += velocity, after velocity = momentum * velocity + x, which is rounded twice."""
    for i in range(len(left)):
        v = momentum * velocity[i] + x[i]
        y = left[i] + v
        velocity[i], left[i] = v, y
        flags[i] = np.uint8(not (abs(y) < limit))


def flagged(flags: Any, number: Any, busy: Any, hits: Any) -> Any:
    """Which of the first `number` flags are set, and how many: without a branch, because it would be unpredictable.

    First the eights that hold one. `flags` has room for 7 more, `hits` for 1 more; `busy` is scratch.
    """
    for i in range(number, (number + 7) & ~7):
        flags[i] = np.uint8(0)
    words: Any = flags.view(np.uint64)
    eights: Any = 0
    found: Any = 0
    for g in range((number + 7) // 8):
        busy[eights] = g
        eights += np.int64(words[g] != 0)
    for j in range(eights):
        for i in range(8 * busy[j], 8 * busy[j] + 8):
            hits[found] = i
            found += np.int64(flags[i])
    return found


def take(whole: Any, begin: Any, hits: Any, number: Any, places: Any, found: Any, count: Any, out: Any) -> Any:
    """Place and value of the first `number` hits, which are counted from `begin` on, after `count` others.

    How many there are then; -1 where something is not finite, which stays. With `out` they are taken out of `whole`.
    """
    bits, worst = whole.view(np.int32), np.int32(0)
    for j in range(number):
        at = begin + hits[j]
        places[count + j], found[count + j] = at, whole[at]
        # Looked at after the loop, so that the loop has no branch.
        worst = max(worst, bits[at] & np.int32(0x7FFFFFFF))
    if worst >= np.int32(0x7F800000):
        return -1
    if out:
        for j in range(number):
            whole[begin + hits[j]] = np.float32(0)
    return count + number
