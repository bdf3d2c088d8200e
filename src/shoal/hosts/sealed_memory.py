"""Memory that a process makes and others of its host map too: without a name, and of a size that nobody can change.

    SealedMemory.create(size)           reserved now; its descriptor travels through a socket (SCM_RIGHTS)
    map_sealed(descriptor, size)        what another process got: checked, so that reading it never ends in a signal

The kernel frees it when the last process that maps it has ended, however it died.
"""

import fcntl
import mmap
import os
import sys
from pathlib import Path

from shoal.core.errors import PayloadError, ShoalError
from shoal.hosts.arena import SharedArena, pages

CAN_SEAL = sys.platform == "linux" and hasattr(os, "memfd_create")
"""Whether this system has it."""
_FIXED = (fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL) if CAN_SEAL else 0


class SealedMemory:
    """`memory`: of this process. The descriptor stays open, for processes that connect later."""

    def __init__(self, descriptor: int, memory: mmap.mmap) -> None:
        self.descriptor, self.memory = descriptor, memory

    @classmethod
    def create(cls, size: int) -> "SealedMemory":
        """ShoalError: the host has too little memory."""
        _check_available(size)
        descriptor = os.memfd_create("shoal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            memory = SharedArena(descriptor).map(0, pages(size))
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _FIXED)
        except (OSError, ShoalError):
            os.close(descriptor)
            raise
        return cls(descriptor, memory)

    def close(self) -> None:
        """Hand it to nobody any more. It stays mapped as long as it is used."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _check_available(size: int) -> None:
    """Reserving more than there is would end some process by a signal, on a host where nothing else limits it."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), size)
    if size > available:
        raise ShoalError(f"cannot reserve {size >> 20} MiB of shared memory: {available >> 20} MiB are available")


def map_sealed(descriptor: int, size: int) -> mmap.mmap:
    """Map what came from another process. PayloadError: it could shrink under its reader, or is shorter than said."""
    try:
        seals, found = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS), os.fstat(descriptor).st_size
    except OSError:  # no file in memory
        seals, found = 0, 0
    if not seals & fcntl.F_SEAL_SHRINK or not 0 < size <= found:
        raise PayloadError(f"memory of {found} bytes with seals {seals:#x} was handed over as {size} sealed bytes")
    return mmap.mmap(descriptor, size)
