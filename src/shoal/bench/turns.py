"""Contestants take turns, so that other load of the machine affects them alike."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def turns(contestants: Sequence[T], repeats: int) -> Iterator[tuple[int, T]]:
    """(repeat, contestant): all in turn, then all in reversed turn, and so on.

    >>> list(turns("ab", 2))
    [(0, 'a'), (0, 'b'), (1, 'b'), (1, 'a')]
    """
    for repeat in range(repeats):
        # Reversed every other time, so that a drift within a repeat does not always hit the same contestants.
        for contestant in contestants[:: -1 if repeat % 2 else 1]:
            yield repeat, contestant
