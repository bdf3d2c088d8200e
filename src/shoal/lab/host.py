"""One host of a running lab: a network namespace with an `eth0` and an address in 10.77.0.0/16."""

import ctypes
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.core.errors import ShoalError
from shoal.core.process import HostProcess

INTERFACE = "eth0"
NAMESPACES = Path("/run/netns")
MTU = 1500
FRAME = MTU + 14
"""Bytes of a full Ethernet frame, without checksum and gap."""
_CLONE_NEWNET = 0x40000000


@dataclass(frozen=True)
class LabHost:
    """A host; `rank` counts from 0."""

    rank: int
    name: str
    """Of the namespace: `ip netns exec NAME …` reaches it from another terminal."""
    address: str

    @property
    def mac(self) -> str:
        """Ends in the host's port number: link.c forwards by it."""
        # 02 in the first byte: a locally administered address, which no device has.
        return f"02:6e:6c:00:{self.rank >> 8:02x}:{self.rank & 255:02x}"

    def enter(self) -> None:
        """Move the calling thread into the namespace, for good; processes it starts are there too."""
        # os.setns exists from Python 3.12 on.
        libc = ctypes.CDLL(None, use_errno=True)
        try:
            # `ip netns add` keeps a namespace alive by a mount under this name.
            fd = os.open(NAMESPACES / self.name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            raise ShoalError(f"host {self.rank} is gone; its lab was closed") from None
        try:
            if libc.setns(fd, _CLONE_NEWNET):
                reason = os.strerror(ctypes.get_errno())
                raise ShoalError(f"cannot enter host {self.rank}: {reason}; run as root")
        finally:
            os.close(fd)

    def processes(self) -> Iterator[int]:
        """Ids of all processes that run there now."""
        home = os.stat(NAMESPACES / self.name).st_ino
        for entry in os.listdir("/proc"):
            if entry.isdecimal() and _inode(f"/proc/{entry}/ns/net") == home:
                yield int(entry)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to everything that runs there, and to no process that has such an id since."""
        home = os.stat(NAMESPACES / self.name).st_ino
        for pid in self.processes():
            process = HostProcess.of(pid)
            if _inode(f"/proc/{pid}/ns/net") == home:  # asked after its beginning, so `process` is one of this host
                process.send(number)


def address_of(rank: int) -> str:
    return f"10.77.0.{rank + 1}"


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:  # it has ended meanwhile
        return 0
