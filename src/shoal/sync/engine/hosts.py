"""Hosts with several workers each: add up inside the host first, then between the hosts, once for each of them.

    worker 0 ─┐ shared memory                      shared memory ┌─ worker 2
    worker 1 ─┴─> leader 0 ──── links (sums/) ──── leader 2 <────┴─ worker 3

    full[b][s] = n      the copy of bucket b in seat s of this host is full for the n-th time
    whole[b] = n        the leader has written the sum over all hosts
    full/read flags     as in tally.py: nobody overwrites what another still reads

The first worker of a host is its leader; links carry 2 (h-1)/h of the bytes of one worker for h hosts, however many
workers each has. Hierarchical all-reduce: Jia et al., "Highly scalable deep learning training system with mixed
precision", 2018. A member that is lost ends the run: where members may change, every worker is on links by itself.
Payloads of codecs go straight from every worker to every other, as without it.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shoal.cluster.linked import LinkedGroup
from shoal.sync.engine.base import Engine, Parcel
from shoal.sync.engine.ring import RingEngine
from shoal.sync.engine.tally import Tally
from shoal.wire.bucket import Space

LINE = 64
NEVER_WAITED_FOR = np.iinfo(np.int64).max


class HostsEngine(Engine):
    """For a group over links whose workers know who else is on their host."""

    def __init__(self, group: LinkedGroup, by: str = "auto") -> None:
        assert group.local is not None
        self.group, self.local = group, group.local
        self.leads = self.local.rank == 0
        self._between = RingEngine(group, among=group.leaders, by=by)
        self._payloads = RingEngine(group)
        self._tally = Tally(self.local)
        self._queue: list[int] = []

    def open(self, spaces: Sequence[Space]) -> list[tuple[Tensor, Tensor]]:
        seats, seat = self.local.seats, self.local.seat
        self._sums = self._between.open(spaces)
        sizes = [_lines(space.numel * space.dtype.itemsize) for space in spaces]
        row = _lines(8 * seats)
        memory = self.local.region(max(3 * len(spaces) * row + (seats + 1) * sum(sizes), 1))
        flags = np.frombuffer(memory, np.int64, 3 * len(spaces) * row // 8).reshape(3, len(spaces), -1)[:, :, :seats]
        self._tally.open(list(flags[0]), list(flags[1]))
        self._whole = list(flags[2])
        if not self.leads:
            for done in self._whole:
                self.local.patience.publish(done, NEVER_WAITED_FOR)
        self._copies, self._results, at = list[list[Tensor]](), list[Tensor](), 3 * len(spaces) * row
        for space, size in zip(spaces, sizes, strict=True):
            of = [
                torch.frombuffer(memory, dtype=space.dtype, offset=at + n * size, count=space.numel)
                for n in range(seats + 1)
            ]
            self._copies.append(of[:seats])
            self._results.append(of[seats])
            at += (seats + 1) * size
        own = [torch.zeros(space.numel, dtype=space.dtype) for space in spaces]
        self._own = own
        return [(copies[seat], result) for copies, result in zip(self._copies, own, strict=True)]

    def prepare(self) -> None:
        self._tally.prepare()
        self._between.prepare()
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
        if self.leads:
            self._between.finish(index)
            self._results[index].copy_(self._sums[index][1])
            self.local.patience.publish(self._whole[index], self._tally.number(index))
        else:
            self.local.patience.until(self._whole[index], self._tally.number(index))
        self._own[index].copy_(self._results[index])
        self._tally.summed(index)

    def _send(self, index: int) -> None:
        """The leader adds up what its host has, and lets it go."""
        self._sums[index][0].copy_(_total(self._copies[index]))
        self._between.start(index)

    def wire(self, index: int) -> int:
        return self._between.wire(index) if self.leads else 0

    def arrival(self, index: int) -> float | None:
        return self._between.arrival(index) if self.leads else None

    def open_payloads(self, parcels: Sequence[Parcel]) -> list[Tensor]:
        return self._payloads.open_payloads(parcels)

    def post(self, index: int, length: int) -> None:
        self._payloads.post(index, length)

    def collect(self, index: int) -> list[Tensor]:
        return self._payloads.collect(index)

    def release(self, index: int) -> None:
        self._payloads.release(index)

    def payload_wire(self, index: int) -> int:
        return self._payloads.payload_wire(index)


def _total(copies: Sequence[Tensor]) -> Tensor:
    """Half precision is added up in float32; it is rounded once here and once between the hosts."""
    half = copies[0].dtype in (torch.float16, torch.bfloat16)
    total = copies[0].float() if half else copies[0].clone()
    for copy in copies[1:]:
        total += copy
    return total


def _lines(size: int) -> int:
    return -(-size // LINE) * LINE
