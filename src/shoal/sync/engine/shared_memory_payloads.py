"""Payloads through one host's shared memory: each worker writes into its own area, the others read it there.

    full[i][s] = n      the payload i of slot s is written for the n-th time; lengths[i][s] is its length
    read[i][s] = n      slot s reads no more of the n-th payloads i, so they may be written again

Of a payload in pieces every worker reads its own piece only.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.groups.shared_memory import SharedGroup
from shoal.sync.engine.base import PayloadEngine, PayloadSpec
from shoal.sync.engine.slot_flags import SlotFlags, flag_bytes, flag_rows, round_to_lines, tensor_at


class SharedMemoryPayloads(PayloadEngine):
    """For a group that shares memory."""

    retryable = True

    def __init__(self, group: SharedGroup) -> None:
        self.group, self.flags = group, SlotFlags(group)
        self._specs: Sequence[PayloadSpec] = ()
        self._memory: memoryview | None = None
        self._starts: list[tuple[int, int]] = []
        """Of each payload: where the area of slot 0 begins, and the distance to the next slot's."""

    def open(self, specs: Sequence[PayloadSpec]) -> list[Tensor]:
        """Return own areas. Opened again, the same memory serves other specs, which fit into its room."""
        memory = self._memory = self._memory or self._reserve(specs)
        self._areas = [
            [tensor_at(memory, start + slot * step, torch.uint8, spec.area) for slot in range(self.group.slots)]
            for (start, step), spec in zip(self._starts, specs, strict=True)
        ]
        self._specs = specs
        return [areas[self.group.slot] for areas in self._areas]

    def _reserve(self, specs: Sequence[PayloadSpec]) -> memoryview:
        slots = self.group.slots
        end = flag_bytes(3, len(specs), slots)
        for spec in specs:
            # an arena only grows, so the room of all views is taken now
            step = round_to_lines(max(spec.area, spec.room, 1))
            self._starts.append((end, step))
            end += slots * step
        memory = self.group.region(max(end, 1))
        full, read, self._lengths = flag_rows(memory, 3, len(specs), slots)
        self.flags.open(full, read)
        return memory

    def prepare(self) -> None:
        self.flags.prepare()

    def post(self, index: int, length: int) -> None:
        self._lengths[index][self.group.slot] = length
        self.flags.start(index)

    def is_done(self, index: int) -> bool:
        return self.flags.is_full(index)

    def collect(self, index: int) -> list[Tensor]:
        self.flags.await_full(index)
        spec, found = self._specs[index], []
        start = spec.bound * self.flags.members.index(self.group.slot) if spec.pieces > 1 else 0
        for slot in self.flags.members:
            area, length = self._areas[index][slot], int(self._lengths[index][slot])
            # the length is another worker's word, so it is checked before it is believed
            if not 0 <= length <= spec.bound:
                raise PayloadError(
                    f"worker {slot} posted {length} bytes as payload {index}, which has at most {spec.bound}; "
                    "all workers must run the same plan and model"
                )
            found.append(area[start : start + (spec.bound if spec.exact else length)])
        return found

    def release(self, index: int) -> None:
        self.flags.mark_read(index)

    def wire_bytes(self, index: int) -> int:
        return 0

    def is_complete(self) -> bool:
        return self.flags.is_complete()

    def retry(self) -> None:
        self.flags.retry()

    def finish_locally(self) -> None:
        """Nothing to do: every payload is in shared memory already."""

    def abandon(self) -> None:
        self.flags.abandon()
