"""Sums buckets through one host's shared memory: no sockets, no copy that is not needed.

Every worker's bucket lies in shared memory. What happens when all have filled it depends on how many they are:

two workers, or a small bucket: each adds up all of it for itself, into memory of its own. Nobody waits a second time;
the price is that the adding is done twice. (For two workers a tie with slices: docs/design.md.)

more workers: worker r adds up slice r of all buckets and writes the sum back into every one (reduce-scatter and
all-gather in one pass, while the slice is in the cache), and all wait for all slices.

    worker 0:  | sum of slice 0 -> all |                        |
    worker 1:  |                       | sum of slice 1 -> all  |

    full[b][r] = n      worker r's bucket b is full for the n-th time
    summed[b][r] = n    worker r has added up its part of bucket b: it reads no more of it

The work is done by the training thread itself, between layers of its backward pass: on a host whose cores all
compute, a helper thread would only take turns with it.
Do not use it across hosts, or for tensors on an accelerator.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from shoal.cluster.shared import SharedGroup
from shoal.sync.engine.base import Engine, Parcel
from shoal.sync.engine.post import Post
from shoal.wire.bucket import Space

CHUNK = 1 << 15
"""Elements summed at a time: the pieces of a few workers fit the second cache, and the calls do not cost more."""
SMALL = 256 << 10
"""Bytes of a bucket that every worker adds up for itself, however many they are."""
LINE = 64
_HALF = (torch.float16, torch.bfloat16)


class MemoryEngine(Engine):
    """For a group that shares memory."""

    def __init__(self, group: SharedGroup) -> None:
        self.group = group
        self._number: list[int] = []
        self._queue: list[int] = []
        self._own: list[bool] = []
        self._post = Post(group)

    def open(self, spaces: Sequence[Space]) -> list[tuple[Tensor, Tensor]]:
        size, rank = self.group.size, self.group.rank
        flags_bytes = 2 * len(spaces) * _lines(8 * size)
        starts, end = [], flags_bytes
        for space in spaces:
            starts.append(end)
            end += size * _lines(space.numel * space.dtype.itemsize)
        memory = self.group.region(max(end, 1))
        flags = np.frombuffer(memory, np.int64, flags_bytes // 8).reshape(2, len(spaces), -1)[:, :, :size]
        self._full, self._summed = list(flags[0]), list(flags[1])
        self._number = [0] * len(spaces)
        self._parts: list[list[tuple[list[Tensor], Tensor | None]]] = []
        pairs = []
        for space, start in zip(spaces, starts, strict=True):
            copies = [
                _tensor(memory, start + r * _lines(space.numel * space.dtype.itemsize), space) for r in range(size)
            ]
            own = size == 2 or space.numel * space.dtype.itemsize <= SMALL
            result = torch.zeros_like(copies[rank]) if own else None
            self._own.append(own)
            self._parts.append(_whole(copies, result) if result is not None else _slice(copies, rank))
            pairs.append((copies[rank], copies[rank] if result is None else result))
        return pairs

    def prepare(self) -> None:
        for index, own in enumerate(self._own):
            if own:
                self.group.patience.until(self._summed[index], self._number[index])
        self._post.prepare()

    def start(self, index: int) -> None:
        self._number[index] += 1
        self.group.patience.publish(self._full[index], self._number[index])
        self._queue.append(index)
        self.progress()

    def progress(self) -> None:
        while self._queue and self.group.patience.reached(self._full[self._queue[0]], self._number[self._queue[0]]):
            self._sum(self._queue.pop(0))

    def finish(self, index: int) -> None:
        while index in self._queue:
            head = self._queue[0]
            self.group.patience.until(self._full[head], self._number[head])
            self._sum(self._queue.pop(0))
        if not self._own[index]:
            self.group.patience.until(self._summed[index], self._number[index])

    def _sum(self, index: int) -> None:
        for pieces, result in self._parts[index]:
            total = pieces[0] if result is None else result
            if total.dtype in _HALF:
                total.copy_(torch.stack(pieces).float().sum(0))
            else:
                torch.add(pieces[0], pieces[1], out=total)
                for piece in pieces[2:]:
                    total.add_(piece)
            if result is None:
                for piece in pieces[1:]:
                    piece.copy_(total)
        self.group.patience.publish(self._summed[index], self._number[index])

    def wire(self, index: int) -> int:
        return 0

    def open_payloads(self, parcels: Sequence[Parcel]) -> list[Tensor]:
        return self._post.open(parcels)

    def post(self, index: int, length: int) -> None:
        self._post.post(index, length)

    def collect(self, index: int) -> list[Tensor]:
        return self._post.collect(index)

    def release(self, index: int) -> None:
        self._post.release(index)

    def payload_wire(self, index: int) -> int:
        return 0


def _tensor(memory: memoryview, start: int, space: Space) -> Tensor:
    return torch.frombuffer(memory, dtype=space.dtype, offset=start, count=space.numel)


def _whole(copies: list[Tensor], result: Tensor) -> list[tuple[list[Tensor], Tensor | None]]:
    """All of the copies, in chunks, each with its place in the result."""
    chunks = [slice(at, at + CHUNK) for at in range(0, result.numel(), CHUNK)]
    return [([copy[chunk] for copy in copies], result[chunk]) for chunk in chunks]


def _slice(copies: list[Tensor], rank: int) -> list[tuple[list[Tensor], Tensor | None]]:
    """This worker's slice of all copies, in chunks; slices begin at cache lines, sums go into the copies."""
    numel, size = copies[0].numel(), len(copies)
    step = LINE // copies[0].element_size()
    width = -(-numel // (size * step)) * step
    begin, end = min(rank * width, numel), min((rank + 1) * width, numel)
    return [([copy[at : min(at + CHUNK, end)] for copy in copies], None) for at in range(begin, end, CHUNK)]


def _lines(size: int) -> int:
    return -(-size // LINE) * LINE
