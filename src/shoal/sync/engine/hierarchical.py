"""Hosts with several workers each: add up inside the host first, then between the hosts, once for each of them.

    worker 0 ─┐ shared memory                      shared memory ┌─ worker 2
    worker 1 ─┴─> leader 0 ──── links (sums/) ──── leader 2 <────┴─ worker 3

    full[b][s] = n      the copy of bucket b in seat s of this host is full for the n-th time
    whole[b][s] = n     the leader in seat s has written the sum over all hosts
    read flags          as in tally.py: nobody overwrites what another still reads

The first worker of a host is its leader; links carry 2 (h-1)/h of the bytes of one worker for h hosts, however many
workers each has. Hierarchical all-reduce: Jia et al., "Highly scalable deep learning training system with mixed
precision", 2018. Where members change, the first that is left leads, and what had started is added up again; each
leader writes into memory of its own, so one that was given up and wakes up changes nothing that is read.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shoal.groups.flag_waiter import FlagWaiter
from shoal.groups.links import LinkedGroup
from shoal.sync.engine.leader import LeaderEngine
from shoal.sync.engine.slot_flags import SlotFlags
from shoal.wire.bucket import BucketSpace

LINE = 64


class HierarchicalEngine(LeaderEngine):
    """For a group over links whose workers know who else is on their host."""

    def __init__(self, group: LinkedGroup, by: str = "auto") -> None:
        super().__init__(group, by)
        assert group.local is not None
        self.local = group.local
        self._tally = SlotFlags(self.local)
        self._queue: list[int] = []
        waits = self.local.patience
        self._leader = FlagWaiter(waits.board, waits.seat, waits.seconds, waits.session)
        """Waits for the one that leads the exchange under way."""

    @property
    def leads(self) -> bool:
        """Whether this worker speaks for its host in the exchange under way."""
        return (self._tally.members or self.local.members)[0] == self.local.seat

    def _assign(self) -> None:
        super()._assign()
        self._leader.wait_for(self._tally.members[:1])

    def open(self, spaces: Sequence[BucketSpace]) -> list[tuple[Tensor, Tensor]]:
        places, width = self.local.places, max(self.local.places) + 1
        self._sums = self._between.open(spaces)
        sizes = [_lines(space.numel * space.dtype.itemsize) for space in spaces]
        row = _lines(8 * width)
        memory = self.local.region(max(3 * len(spaces) * row + 2 * len(places) * sum(sizes), 1))
        flags = np.frombuffer(memory, np.int64, 3 * len(spaces) * row // 8).reshape(3, len(spaces), -1)[:, :, :width]
        self._tally.open(list(flags[0]), list(flags[1]))
        self._whole = list(flags[2])
        self._copies, self._results, at = list[dict[int, Tensor]](), list[dict[int, Tensor]](), 3 * len(spaces) * row
        for space, size in zip(spaces, sizes, strict=True):
            for kind in (self._copies, self._results):
                kind.append({seat: _tensor(memory, at + n * size, space) for n, seat in enumerate(places)})
                at += len(places) * size
        self._own = [torch.zeros(space.numel, dtype=space.dtype) for space in spaces]
        return [(copies[self.local.seat], own) for copies, own in zip(self._copies, self._own, strict=True)]

    def prepare(self) -> None:
        self._tally.prepare()
        super().prepare()
        self._queue = []

    def start(self, index: int) -> None:
        self._tally.start(index)
        if self.leads:
            self._queue.append(index)
            self.progress()

    def progress(self) -> None:
        while self._queue and self._tally.full(self._queue[0]):
            self._send(self._queue.pop(0))

    def finish(self, index: int) -> None:
        while index in self._queue:
            self._tally.await_full(self._queue[0])
            self._send(self._queue.pop(0))
        result = self._results[index][self._tally.members[0]]
        if self.leads:
            self._between.finish(index)
            result.copy_(self._sums[index][1])
            self.local.patience.publish(self._whole[index], self._tally.number(index))
        else:
            self._leader.until(self._whole[index], self._tally.number(index))
        self._own[index].copy_(result)
        self._tally.summed(index)

    def _send(self, index: int) -> None:
        """The leader adds up what its host has, and lets it go."""
        self._sums[index][0].copy_(_total([self._copies[index][seat] for seat in self._tally.members]))
        self._between.start(index)

    def whole(self) -> bool:
        there = self._between.holds if self.leads else self.landed
        return self._payloads.whole() and all(there(index) for index in list(self._tally.started))

    def repeat(self) -> None:
        self._tally.repeat()
        self._between.forget()
        self._assign()
        self._payloads.repeat()
        self._queue = list(self._tally.started) if self.leads else []
        self.progress()

    def forget(self) -> None:
        super().forget()
        self._tally.forget()
        self._queue = []

    def landed(self, index: int) -> bool:
        if self.leads:
            return self._between.landed(index)
        return self._leader.reached(self._whole[index], self._tally.number(index))

    def wire(self, index: int) -> int:
        return self._between.wire(index) if self.leads else 0

    def arrival(self, index: int) -> float | None:
        return self._between.arrival(index) if self.leads else None


def _tensor(memory: memoryview, start: int, space: BucketSpace) -> Tensor:
    return torch.frombuffer(memory, dtype=space.dtype, offset=start, count=space.numel)


def _total(copies: Sequence[Tensor]) -> Tensor:
    """Half precision is added up in float32; it is rounded once here and once between the hosts."""
    half = copies[0].dtype in (torch.float16, torch.bfloat16)
    total = copies[0].float() if half else copies[0].clone()
    for copy in copies[1:]:
        total += copy
    return total


def _lines(size: int) -> int:
    return -(-size // LINE) * LINE
