"""What the runs of one user on one host tell each other: how much each has left to send, and whether it sends now.

    $XDG_RUNTIME_DIR/shoal/sending-NETWORK/PID-BEGAN     one file of a page for each process that sends

NETWORK is the number of the process's network namespace: processes of different ones do not share a link. Only its
owner writes an entry. A reader believes an entry only while the process it names lives, is not stopped, and has
written within `FRESH` seconds; numbers that are no amounts are passed over, so a bad entry can hold nobody back for
longer than that.
"""

import contextlib
import math
import mmap
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from shoal.core.errors import UsageError
from shoal.core.private import check_private, is_private, open_private
from shoal.core.process import HostProcess

PAGE = 4096
MAGIC = 0x53484F414C4A4F42
_MAGIC, _LEFT, _WRITTEN, _BUSY = range(4)
_NAME, LONGEST_NAME = 64, 128
FRESH = 1.0
"""Seconds for which what a process has written holds: its communication thread writes several times as often."""
RESCAN = 0.25
"""Seconds between two looks for other processes."""
MOST_JOBS = 256
"""Entries that are read at the most."""


@dataclass(frozen=True)
class JobEntry:
    """A run that has something to send, or will have."""

    name: str
    left: float
    """Bytes until it ends; infinite if nobody knows."""
    is_busy: bool
    """Whether something waits or is under way now."""


class _OpenEntry:
    """Another process's file."""

    def __init__(self, path: Path, process: HostProcess) -> None:
        self.process, self.is_running, self._looked = process, True, -math.inf
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or not is_private(status) or status.st_size != PAGE:
                raise OSError("no entry of this user's")
            self._memory = memoryview(mmap.mmap(handle, PAGE, prot=mmap.PROT_READ))
        finally:
            os.close(handle)
        self._words, self._numbers = self._memory.cast("q"), self._memory.cast("d")

    def read(self, moment: float) -> JobEntry | None:
        """Return what it says; None if it says nothing that counts now."""
        left, written = self._numbers[_LEFT], self._numbers[_WRITTEN]
        if self._words[_MAGIC] != MAGIC or not left >= 0 or not abs(moment - written) <= FRESH:
            return None
        if not self._is_running(moment):
            return None
        raw = bytes(self._memory[_NAME : _NAME + LONGEST_NAME]).partition(b"\0")[0].decode(errors="replace")
        name = "".join(letter for letter in raw if letter.isprintable())
        return JobEntry(name, left, self._words[_BUSY] == 1)

    def _is_running(self, moment: float) -> bool:
        """A killed process must free the link at once, and to ask costs a file to read."""
        if moment - self._looked > RESCAN / 10:
            self.is_running, self._looked = self.process.state == "running", moment
        return self.is_running


class JobBoard:
    """One process's entry, and what the others say. `folder`: the user's own is used if none is given."""

    def __init__(self, name: str, folder: Path | None = None) -> None:
        self.name = name[:LONGEST_NAME]
        self.folder = folder or open_private() / f"sending-{os.stat('/proc/self/ns/net').st_ino}"
        self._process = HostProcess.of(os.getpid())
        self._others: dict[str, _OpenEntry] = {}
        self._scanned = -math.inf
        self._closed = False
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            check_private(self.folder)
            self._path = self.folder / f"{self._process.pid}-{self._process.began}-{id(self)}"
            self._open()
        except OSError as error:
            raise UsageError(f"cannot write to {str(self.folder)!r}: {error.strerror}; make it yours alone") from None

    def _open(self) -> None:
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(handle, PAGE)
            memory = memoryview(mmap.mmap(handle, PAGE))
        finally:
            os.close(handle)
        encoded = self.name.encode()[: LONGEST_NAME - 1]
        memory[_NAME : _NAME + len(encoded)] = encoded
        self._words, self._numbers = memory.cast("q"), memory.cast("d")
        self._words[_MAGIC] = MAGIC

    def write(self, left: float, is_busy: bool) -> None:
        """Say how many bytes this run has left, and whether it has something to send now."""
        self._numbers[_LEFT], self._words[_BUSY] = left, int(is_busy)
        self._numbers[_WRITTEN] = time.monotonic()

    def read(self) -> list[JobEntry]:
        """Return the entries of other runs; one run's processes do not compete with each other."""
        moment = time.monotonic()
        if moment - self._scanned > RESCAN:
            self._scanned = moment
            self._scan()
        said = [entry.read(moment) for entry in self._others.values()]
        return [entry for entry in said if entry is not None and entry.name != self.name]

    def _scan(self) -> None:
        """Open what is new, and remove what the dead have left."""
        names = sorted(os.listdir(self.folder))[:MOST_JOBS] if self.folder.is_dir() else []
        for gone in self._others.keys() - set(names):
            del self._others[gone]
        for name in names:
            pid, _, rest = name.partition("-")
            began = rest.partition("-")[0]
            if name == self._path.name or not (pid.isdecimal() and began.isdecimal()) or len(name) > 100:
                continue
            process = HostProcess(int(pid), int(began))
            if process.state == "gone":
                self._others.pop(name, None)
                with contextlib.suppress(OSError):
                    (self.folder / name).unlink()
            elif name not in self._others:
                with contextlib.suppress(OSError, ValueError):
                    self._others[name] = _OpenEntry(self.folder / name, process)

    def close(self) -> None:
        """Take the entry away, and the folder with the last."""
        if not self._closed:
            self._closed = True
            self._words[_BUSY] = self._words[_MAGIC] = 0
            self._others.clear()
            with contextlib.suppress(OSError):
                self._path.unlink()
                self.folder.rmdir()
