"""Sums buckets through one host's shared memory: no sockets, no copy that is not needed.

Every worker's bucket lies in shared memory, and is only read by the others. What happens when all have filled it
depends on how many they are:

two workers, or a small bucket: each adds up all of it for itself. Nobody waits a second time; the price is that the
adding is done twice. (For two workers a tie with slices: docs/design.md.)

more workers: worker r adds up slice r of all buckets and writes the sum into everybody's result (reduce-scatter and
all-gather in one pass, while the slice is in the cache), and all wait for all slices.

    worker 0:  | sum of slice 0 -> all |                        |
    worker 1:  |                       | sum of slice 1 -> all  |

    full[b][s] = n      the bucket b in seat s is full for the n-th time
    summed[b][s] = n    the worker in seat s has added up its part of bucket b: it reads no more of it

The work is done by the training thread itself, between layers of its backward pass: on a host whose cores all
compute, a helper thread would only take turns with it.
Do not use it across hosts, or for tensors on an accelerator.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shoal.groups.shared_memory import SharedGroup
from shoal.sync.engine.base import ExchangeEngine, PayloadSpec
from shoal.sync.engine.payload_area import PayloadArea
from shoal.sync.engine.slot_flags import SlotFlags
from shoal.wire.bucket import BucketSpace

CHUNK = 1 << 15
"""Elements summed at a time: the pieces of a few workers fit the second cache, and the calls do not cost more."""
SMALL = 256 << 10
"""Bytes of a bucket that every worker adds up for itself, however many they are."""
LINE = 64
_HALF = (torch.float16, torch.bfloat16)

Part = tuple[list[Tensor], list[Tensor]]
"""Pieces to be added up, and where the sum goes."""


class SharedMemoryEngine(ExchangeEngine):
    """For a group that shares memory."""

    repeatable = True

    def __init__(self, group: SharedGroup) -> None:
        self.group = group
        self.tally = SlotFlags(group)
        self._queue: list[int] = []
        self._copies: list[list[Tensor]] = []
        self._results: list[list[Tensor]] = []
        self._parts: dict[tuple[int, tuple[int, ...], bool], list[Part]] = {}
        self._alone = False
        """Whether this worker finishes what has started without the others."""
        self._post = PayloadArea(group)

    def open(self, spaces: Sequence[BucketSpace]) -> list[tuple[Tensor, Tensor]]:
        seats, seat = self.group.seats, self.group.seat
        sizes = [_lines(space.numel * space.dtype.itemsize) for space in spaces]
        shared = [seats > 2 and size > SMALL for size in sizes]
        flags_bytes = 2 * len(spaces) * _lines(8 * seats)
        areas = sum(size * seats * (1 + both) for size, both in zip(sizes, shared, strict=True))
        memory = self.group.region(max(flags_bytes + areas, 1))
        flags = np.frombuffer(memory, np.int64, flags_bytes // 8).reshape(2, len(spaces), -1)[:, :, :seats]
        self.tally.open(list(flags[0]), list(flags[1]))
        at = flags_bytes
        for space, size, both in zip(spaces, sizes, shared, strict=True):
            rows = [
                [_tensor(memory, at + (row * seats + one) * size, space) for one in range(seats)]
                for row in range(1 + both)
            ]
            at += size * seats * (1 + both)
            self._copies.append(rows[0])
            self._results.append(rows[1] if both else [torch.zeros_like(rows[0][seat])] * seats)
        return [(copies[seat], results[seat]) for copies, results in zip(self._copies, self._results, strict=True)]

    def prepare(self) -> None:
        self.tally.prepare()
        self._post.prepare()
        self._queue, self._alone = [], False

    def start(self, index: int) -> None:
        self.tally.start(index)
        self._queue.append(index)
        self.progress()

    def progress(self) -> None:
        while self._queue and self.tally.full(self._queue[0]):
            self._sum(self._queue.pop(0))

    def finish(self, index: int) -> None:
        while index in self._queue:
            self.tally.await_full(self._queue[0])
            self._sum(self._queue.pop(0))
        if not self._by_itself(index):
            self.tally.await_summed(index)

    def whole(self) -> bool:
        return self.tally.whole() and self._post.tally.whole()

    def repeat(self) -> None:
        self.tally.repeat()
        self._post.tally.repeat()
        self._queue, self._alone = list(self.tally.started), False

    def recover(self) -> None:
        self._queue, self._alone = list(self.tally.started), True

    def forget(self) -> None:
        self.tally.forget()
        self._post.tally.forget()
        self._queue = []

    def _by_itself(self, index: int) -> bool:
        size = self._copies[index][0].numel() * self._copies[index][0].element_size()
        return self._alone or len(self.tally.members) <= 2 or _lines(size) <= SMALL

    def _sum(self, index: int) -> None:
        for pieces, targets in self._parts_of(index):
            total = targets[0]
            if len(pieces) == 1:
                total.copy_(pieces[0])
            elif total.dtype in _HALF:
                total.copy_(torch.stack(pieces).float().sum(0))
            else:
                torch.add(pieces[0], pieces[1], out=total)
                for piece in pieces[2:]:
                    total.add_(piece)
            for target in targets[1:]:
                target.copy_(total)
        self.tally.summed(index)

    def _parts_of(self, index: int) -> list[Part]:
        """What this worker adds up of a bucket, in chunks; made once for each set of members."""
        members, whole = self.tally.members, self._by_itself(index)
        key = (index, members, whole)
        if key not in self._parts:
            copies = [self._copies[index][seat] for seat in members]
            results = [self._results[index][seat] for seat in members]
            begin, end = 0, copies[0].numel()
            if whole:
                results = [self._results[index][self.group.seat]]
            else:
                begin, end = _slice(copies[0], len(members), members.index(self.group.seat))
            cuts = [slice(at, min(at + CHUNK, end)) for at in range(begin, end, CHUNK)]
            self._parts[key] = [([copy[cut] for copy in copies], [result[cut] for result in results]) for cut in cuts]
        return self._parts[key]

    def wire(self, index: int) -> int:
        return 0

    def landed(self, index: int) -> bool:
        return self.tally.full(index)

    def payload_landed(self, index: int) -> bool:
        return self._post.tally.full(index)

    def open_payloads(self, parcels: Sequence[PayloadSpec]) -> list[Tensor]:
        return self._post.open(parcels)

    def post(self, index: int, length: int) -> None:
        self._post.post(index, length)

    def collect(self, index: int) -> list[Tensor]:
        return self._post.collect(index)

    def release(self, index: int) -> None:
        self._post.release(index)

    def payload_wire(self, index: int) -> int:
        return 0


def _tensor(memory: memoryview, start: int, space: BucketSpace) -> Tensor:
    return torch.frombuffer(memory, dtype=space.dtype, offset=start, count=space.numel)


def _slice(copy: Tensor, parts: int, number: int) -> tuple[int, int]:
    """Begin and end of one of `parts` slices, which begin at cache lines."""
    numel, step = copy.numel(), LINE // copy.element_size()
    width = -(-numel // (parts * step)) * step
    return min(number * width, numel), min((number + 1) * width, numel)


def _lines(size: int) -> int:
    return -(-size // LINE) * LINE
