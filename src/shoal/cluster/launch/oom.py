"""Whether a worker that died of SIGKILL was killed by the kernel for want of memory.

The kernel counts those kills in the memory control group of the victim (memory.oom_control of version 1,
memory.events.local of version 2). When a process has died nothing tells any more where it was, so the launcher looks
now and then while workers live. Where there are no control groups, a kill stays a SIGKILL.
"""

import contextlib
from collections.abc import Iterable
from pathlib import Path

from shoal.core.clock import Deadline

ROOT = Path("/sys/fs/cgroup")
LOOK = 0.25
"""Seconds between two looks at where the workers are."""


class OutOfMemory:
    """Used by the launcher's one thread."""

    def __init__(self) -> None:
        self._where: dict[int, Path] = {}
        self._counts: dict[Path, int] = {}
        self._next = Deadline.after(0.0)

    def look(self, pids: Iterable[int]) -> None:
        """See where these processes are, if it is time."""
        if not self._next.expired:
            return
        self._next = Deadline.after(LOOK)
        for pid in pids:
            file = counter(pid)
            if file is not None and (pid not in self._where or file.parent not in (ROOT, ROOT / "memory")):
                self._where[pid] = file  # the dying are counted to the root: where they were before is what matters
                self._counts.setdefault(file, kills(file))

    def killed(self, pid: int) -> bool:
        """Whether there is a kill in the group of `pid` that no death before it accounts for."""
        file = self._where.pop(pid, None)
        if file is None:
            return False
        before, self._counts[file] = self._counts[file], kills(file)
        return self._counts[file] > before


def counter(pid: int) -> Path | None:
    """The file that counts kills in the group of a living process."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        number, kinds, group = line.split(":", 2)
        if "memory" in kinds.split(","):
            return _there(ROOT / "memory" / group.lstrip("/") / "memory.oom_control")
        if number == "0" and (file := _there(ROOT / group.lstrip("/") / "memory.events.local")):
            return file
    return None


def kills(file: Path) -> int:
    """How many it counts; 0 if it is gone."""
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    return 0


def _there(file: Path) -> Path | None:
    return file if file.exists() else None
