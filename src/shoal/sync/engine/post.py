"""Payloads through one host's shared memory: each worker writes into an area of its own, the others read it there.

posted[i][r] = n      worker r's payload i is written for the n-th time; lengths[i][r] says how long it is
taken[i][r] = n       worker r reads no more of the n-th payloads i: they may be written again
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shoal.cluster.shared import SharedGroup
from shoal.core.errors import PayloadError
from shoal.sync.engine.base import Parcel

LINE = 64


class Post:
    """The areas and flags of one engine."""

    def __init__(self, group: SharedGroup) -> None:
        self.group = group
        self._parcels: Sequence[Parcel] = ()
        self._number: list[int] = []

    def open(self, parcels: Sequence[Parcel]) -> list[Tensor]:
        size = self.group.size
        row = -(-8 * size // LINE) * LINE
        starts, end = [], 3 * len(parcels) * row
        for parcel in parcels:
            starts.append(end)
            end += size * _lines(parcel.bound)
        memory = self.group.region(max(end, 1))
        flags = np.frombuffer(memory, np.int64, 3 * len(parcels) * row // 8).reshape(3, len(parcels), -1)[:, :, :size]
        self._posted, self._taken, self._lengths = (list(kind) for kind in flags)
        self._areas = [
            [_area(memory, start + r * _lines(parcel.bound), parcel.bound) for r in range(size)]
            for start, parcel in zip(starts, parcels, strict=True)
        ]
        self._parcels, self._number = parcels, [0] * len(parcels)
        return [areas[self.group.rank] for areas in self._areas]

    def prepare(self) -> None:
        for taken, number in zip(self._taken if self._parcels else (), self._number, strict=True):
            self.group.patience.until(taken, number)

    def post(self, index: int, length: int) -> None:
        self._number[index] += 1
        self._lengths[index][self.group.rank] = length
        self.group.patience.publish(self._posted[index], self._number[index])

    def collect(self, index: int) -> list[Tensor]:
        self.group.patience.until(self._posted[index], self._number[index])
        parcel, lengths = self._parcels[index], self._lengths[index].tolist()
        for rank, length in enumerate(lengths):
            if not 0 <= length <= parcel.bound:
                raise PayloadError(
                    f"worker {rank} posted {length} bytes as payload {index}, which has at most {parcel.bound}; "
                    "all workers must run the same plan and model"
                )
        return [
            area if parcel.exact else area[:length] for area, length in zip(self._areas[index], lengths, strict=True)
        ]

    def release(self, index: int) -> None:
        self.group.patience.publish(self._taken[index], self._number[index])


def _area(memory: memoryview, start: int, size: int) -> Tensor:
    return torch.frombuffer(memory, dtype=torch.uint8, offset=start, count=size)


def _lines(size: int) -> int:
    return -(-max(size, 1) // LINE) * LINE
