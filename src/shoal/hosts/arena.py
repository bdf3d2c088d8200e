"""Memory that the workers of one host share, without a name that a crash could leave behind.

The arena is an anonymous file: a holder of its descriptor may map parts of it, and when the last process is gone,
however it died, so is the memory. A launcher's children inherit the descriptor; processes with another parent
(torchrun) open it through the creator's entry in /proc.
"""

import mmap
import os
import tempfile
from pathlib import Path

from shoal.core.errors import ShoalError


class SharedArena:
    """A growing piece of shared memory; every worker must map the same parts in the same order."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def create(cls) -> "SharedArena":
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("shoal"))
        with tempfile.TemporaryFile() as file:  # not on Linux: a file that is already unlinked
            return cls(os.dup(file.fileno()))

    @classmethod
    def of_process(cls, pid: int, descriptor: int) -> "SharedArena":
        """Open the arena that process `pid` of this host created."""
        return cls(os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC))

    def map(self, offset: int, size: int) -> mmap.mmap:
        """Map `size` bytes at `offset` (a multiple of the page size), and grow the arena if it is shorter.

        Memory is reserved now, so that a host with too little raises here instead of a SIGBUS in the middle of a step.
        """
        try:
            # not ftruncate: that would promise pages the host may not have
            os.posix_fallocate(self.descriptor, offset, size)
        except OSError as error:
            raise ShoalError(
                f"cannot reserve {size >> 20} MiB of shared memory: {error.strerror}; {_limit()}"
            ) from None
        # The mapping stays valid after the descriptor is closed.
        return mmap.mmap(self.descriptor, size, offset=offset)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


PLAN_STRIDE = 1 << 40
"""Bytes between the regions of one plan and those of the next. The arena is a sparse file, so the gap costs nothing."""


class ArenaRegions:
    """Consecutive parts of an arena from `start` on; every worker takes the same ones in the same order.

    Each plan of a run has its own place, given by its number, so that a worker that comes after a switch finds it,
    though it never took the regions of earlier plans.
    """

    def __init__(self, arena: SharedArena, start: int) -> None:
        self._arena, self._start, self._used = arena, start, start
        self._taken: list[mmap.mmap] = []
        self._old: list[mmap.mmap] = []
        """Regions of earlier plans."""

    def take(self, size: int) -> memoryview:
        size = pages(size)
        memory = self._arena.map(self._used, size)
        self._used += size
        self._taken.append(memory)
        return memoryview(memory)

    def begin_plan(self, number: int) -> None:
        """Take the next regions where those of plan `number` begin."""
        self._used = self._start + number * PLAN_STRIDE
        self._old, self._taken = self._old + self._taken, []

    def free_old(self) -> None:
        """Free the memory of earlier plans, once no worker uses it any more."""
        for memory in self._old if hasattr(mmap, "MADV_REMOVE") else ():
            # Punches a hole: unmapping would free nothing while other processes map the same pages.
            memory.madvise(mmap.MADV_REMOVE)
        self._old = []


def pages(size: int) -> int:
    """Round `size` up to whole pages."""
    return -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY


def _limit() -> str:
    cgroup = Path("/sys/fs/cgroup/memory.max")
    limit = cgroup.read_text().strip() if cgroup.exists() else "unknown"
    return f"free memory or raise the container's limit (memory.max: {limit})"
