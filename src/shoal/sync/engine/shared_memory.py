"""Sums tensors through one host's shared memory: no sockets, and no copy that is not needed.

Every worker's tensor lies in shared memory and is only read by the others. When all are full:

two workers, or a small tensor: each worker adds up all of it for itself. Nobody waits a second time; the price is
that the adding is done p times.

more workers: worker r adds up slice r and writes the sum into everybody's result (reduce-scatter and all-gather in
one pass, while the slice is in the cache), and all wait for all slices.

    worker 0:  | sum of slice 0 -> all |                        |
    worker 1:  |                       | sum of slice 1 -> all  |

    full[i][s] = n      the tensor i of slot s is full for the n-th time
    read[i][s] = n      slot s has added up its part of tensor i, and reads no more of it

The training thread itself does the work, between layers of its backward pass: on a host whose cores all compute, a
helper thread would only take turns with it. Do not use it across hosts, or for tensors on an accelerator.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.groups.shared_memory import SharedGroup
from shoal.sync.engine.base import AllReduceEngine
from shoal.sync.engine.slot_flags import LINE, SlotFlags, flag_bytes, flag_rows, round_to_lines, tensor_at
from shoal.wire.bucket import BucketSpace

CHUNK = 1 << 15
"""Elements summed at a time: the pieces of a few workers fit the second-level cache, and calls stay cheap."""
SMALL = 256 << 10
"""Bytes of a tensor that every worker adds up for itself, however many workers there are."""
_HALF = (torch.float16, torch.bfloat16)

Part = tuple[list[Tensor], list[Tensor]]
"""Pieces to be added up, and where the sum goes."""


class SharedMemoryEngine(AllReduceEngine):
    """For a group that shares memory."""

    retryable = True

    def __init__(self, group: SharedGroup) -> None:
        self.group = group
        self.flags = SlotFlags(group)
        self._queue: list[int] = []
        self._copies: list[list[Tensor]] = []
        self._results: list[list[Tensor]] = []
        self._parts: dict[tuple[int, tuple[int, ...], bool], list[Part]] = {}
        self._locally = False
        """Whether this worker finishes what has started without the others."""

    def open(self, spaces: Sequence[BucketSpace]) -> list[tuple[Tensor, Tensor]]:
        slots, slot = self.group.slots, self.group.slot
        sizes = [round_to_lines(space.numel * space.dtype.itemsize) for space in spaces]
        # by slots, not members: memory is reserved once, and members may come back
        shared = [slots > 2 and size > SMALL for size in sizes]
        at = flag_bytes(2, len(spaces), slots)
        areas = sum(size * slots * (1 + both) for size, both in zip(sizes, shared, strict=True))
        memory = self.group.region(max(at + areas, 1))
        self.flags.open(*flag_rows(memory, 2, len(spaces), slots))
        for space, size, both in zip(spaces, sizes, shared, strict=True):
            rows = [
                [tensor_at(memory, at + (row * slots + one) * size, space.dtype, space.numel) for one in range(slots)]
                for row in range(1 + both)
            ]
            at += size * slots * (1 + both)
            self._copies.append(rows[0])
            # results of tensors that every worker adds up for itself need not be shared
            self._results.append(rows[1] if both else [torch.zeros_like(rows[0][slot])] * slots)
        return [(copies[slot], results[slot]) for copies, results in zip(self._copies, self._results, strict=True)]

    def prepare(self) -> None:
        self.flags.prepare()
        self._queue, self._locally = [], False

    def start(self, index: int) -> None:
        self.flags.start(index)
        self._queue.append(index)
        self.progress()

    def progress(self) -> None:
        while self._queue and self.flags.is_full(self._queue[0]):
            self._sum(self._queue.pop(0))

    def finish(self, index: int) -> None:
        # in order, so that no worker waits for a slice that another puts off
        while index in self._queue:
            self.flags.await_full(self._queue[0])
            self._sum(self._queue.pop(0))
        if not self._sums_all_of(index):
            self.flags.await_read(index)

    def is_done(self, index: int) -> bool:
        return self.flags.is_full(index)

    def wire_bytes(self, index: int) -> int:
        return 0

    def is_complete(self) -> bool:
        return self.flags.is_complete()

    def retry(self) -> None:
        self.flags.retry()
        self._queue, self._locally = list(self.flags.started), False

    def finish_locally(self) -> None:
        # others may never add up their slices; all copies are here, so this worker adds up everything
        self._queue, self._locally = list(self.flags.started), True

    def abandon(self) -> None:
        self.flags.abandon()
        self._queue = []

    def _sums_all_of(self, index: int) -> bool:
        """Return whether this worker adds up the whole tensor for itself."""
        size = self._copies[index][0].numel() * self._copies[index][0].element_size()
        return self._locally or len(self.flags.members) <= 2 or round_to_lines(size) <= SMALL

    def _sum(self, index: int) -> None:
        for pieces, targets in self._parts_of(index):
            total = targets[0]
            if len(pieces) == 1:
                total.copy_(pieces[0])
            elif total.dtype in _HALF:  # in float32, and rounded once
                total.copy_(torch.stack(pieces).float().sum(0))
            else:
                # one pass over memory, where a copy and an addition would be two
                torch.add(pieces[0], pieces[1], out=total)
                for piece in pieces[2:]:
                    total.add_(piece)
            for target in targets[1:]:
                target.copy_(total)
        self.flags.mark_read(index)

    def _parts_of(self, index: int) -> list[Part]:
        """Return what this worker adds up of a tensor, in chunks; made once for each set of members."""
        members, everything = self.flags.members, self._sums_all_of(index)
        # views of chunks are made once for each set of members, not in every step
        key = (index, members, everything)
        if key not in self._parts:
            copies = [self._copies[index][slot] for slot in members]
            results = [self._results[index][slot] for slot in members]
            begin, end = 0, copies[0].numel()
            if everything:
                # never into the others' results: they may use theirs already
                results = [self._results[index][self.group.slot]]
            else:
                begin, end = _slice(copies[0], len(members), members.index(self.group.slot))
            cuts = [slice(at, min(at + CHUNK, end)) for at in range(begin, end, CHUNK)]
            self._parts[key] = [([copy[cut] for copy in copies], [result[cut] for result in results]) for cut in cuts]
        return self._parts[key]


def _slice(copy: Tensor, parts: int, number: int) -> tuple[int, int]:
    """Return where one of `parts` slices begins and ends; they begin at cache lines, so no two workers share one."""
    numel, step = copy.numel(), LINE // copy.element_size()
    width = -(-numel // (parts * step)) * step
    return min(number * width, numel), min((number + 1) * width, numel)
