"""Leased samples that each worker of a host has trained in the round under way, in memory that the others can read.

    | of each slot: how many ranges | of each slot: loader, epoch, number, begin, end of every range

A copy of the parameters outlives a worker that is killed, and with it what the worker trained. A lease says only what
it was given; so it writes down what it has stepped on, and those that stay can count it. A range is written before the
number that announces it: whoever is killed in between has trained something that will be trained again.
"""

from collections.abc import Iterable

import numpy as np

from shoal.groups.host_workers import CopyHost
from shoal.sync.engine.slot_flags import LINE, Flags
from shoal.sync.trained import TrainedSamples

MOST_RANGES = 4096
"""Of one worker in a round. What is beyond would be dealt again if the worker were lost, and costs memory if not."""
WORDS = 5


class TrainedLog:
    """Of one host, as one worker sees it."""

    def __init__(self, host: CopyHost) -> None:
        """Take the memory; every worker calls this in the same order."""
        slots = max(host.places) + 1
        words = np.frombuffer(host.region(slots * (LINE + 8 * WORDS * MOST_RANGES)), np.int64)
        head = slots * LINE // 8
        self._written: Flags = words[:head].reshape(slots, -1)[:, 0]
        self._ranges: Flags = words[head : head + slots * WORDS * MOST_RANGES].reshape(slots, MOST_RANGES, WORDS)
        self._slot = host.slot

    def clear(self) -> None:
        """A round begins."""
        self._written[self._slot] = 0

    def add(self, trained: Iterable[TrainedSamples]) -> None:
        """This worker has made a step of these samples."""
        own, at = self._ranges[self._slot], int(self._written[self._slot])
        for each in trained:
            for begin, end in each.ranges[: MOST_RANGES - at]:
                own[at] = (*each.key, begin, end)
                at += 1
        self._written[self._slot] = at

    def read(self, slot: int) -> list[TrainedSamples]:
        """What the worker of a slot has written since its round began."""
        found: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        for loader, epoch, number, begin, end in self._ranges[slot, : int(self._written[slot])].tolist():
            found.setdefault((loader, epoch, number), []).append((begin, end))
        return [TrainedSamples(key, ranges) for key, ranges in found.items()]
