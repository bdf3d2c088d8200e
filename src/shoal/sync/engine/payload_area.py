"""Payloads through one host's shared memory: each worker writes into an area of its own, the others read it there.

posted[i][r] = n      worker r's payload i is written for the n-th time; lengths[i][r] says how long it is
taken[i][r] = n       worker r reads no more of the n-th payloads i: they may be written again

Of a payload in pieces everybody reads its own piece only.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.groups.shared_memory import SharedGroup
from shoal.sync.engine.base import PayloadSpec
from shoal.sync.engine.slot_flags import SlotFlags

LINE = 64


class PayloadArea:
    """The areas and flags of one engine."""

    def __init__(self, group: SharedGroup) -> None:
        self.group, self.tally = group, SlotFlags(group)
        self._parcels: Sequence[PayloadSpec] = ()
        self._starts: list[tuple[int, int]] = []
        """Of each parcel: where the area of seat 0 begins, and how far the others are apart."""

    def open(self, parcels: Sequence[PayloadSpec]) -> list[Tensor]:
        """Another time: the same memory for other parcels, which have room in it."""
        if not self._starts:
            self._reserve(parcels)
        self._areas = [
            [_area(self._memory, start + seat * step, parcel.area) for seat in range(self.group.seats)]
            for (start, step), parcel in zip(self._starts, parcels, strict=True)
        ]
        self._parcels = parcels
        return [areas[self.group.seat] for areas in self._areas]

    def _reserve(self, parcels: Sequence[PayloadSpec]) -> None:
        seats = self.group.seats
        row = -(-8 * seats // LINE) * LINE
        end = 3 * len(parcels) * row
        for parcel in parcels:
            step = _lines(max(parcel.area, parcel.room))
            self._starts.append((end, step))
            end += seats * step
        self._memory = self.group.region(max(end, 1))
        flags = np.frombuffer(self._memory, np.int64, 3 * len(parcels) * row // 8).reshape(3, len(parcels), -1)
        flags = flags[:, :, :seats]
        self.tally.open(list(flags[0]), list(flags[1]))
        self._lengths = list(flags[2])

    def prepare(self) -> None:
        self.tally.prepare()

    def post(self, index: int, length: int) -> None:
        self._lengths[index][self.group.seat] = length
        self.tally.start(index)

    def collect(self, index: int) -> list[Tensor]:
        self.tally.await_full(index)
        parcel, found = self._parcels[index], []
        start = parcel.bound * self.tally.members.index(self.group.seat) if parcel.pieces > 1 else 0
        for seat in self.tally.members:
            area, length = self._areas[index][seat], int(self._lengths[index][seat])
            if not 0 <= length <= parcel.bound:
                raise PayloadError(
                    f"worker {seat} posted {length} bytes as payload {index}, which has at most {parcel.bound}; "
                    "all workers must run the same plan and model"
                )
            found.append(area[start : start + (parcel.bound if parcel.exact else length)])
        return found

    def release(self, index: int) -> None:
        self.tally.summed(index)


def _area(memory: memoryview, start: int, size: int) -> Tensor:
    return torch.frombuffer(memory, dtype=torch.uint8, offset=start, count=size)


def _lines(size: int) -> int:
    return -(-max(size, 1) // LINE) * LINE
