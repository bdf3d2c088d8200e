"""Slow hosts: a limit on processor time by control groups where they can be made, else the caller sleeps.

A quota slows everything the host does, as a slower processor would. Without one, a worker that computed for t seconds
sleeps `rest(t, speed)` more. Either way hosts share this machine's cores: when all are busy, even a host of speed 1
gets only its part of them, so give each host at most cores / hosts threads.
"""

import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD = 20_000
"""Microseconds in which a quota is granted; short, so that a step is not cut into few long pieces."""
LEAST = 1_000
"""Microseconds the kernel accepts as a quota."""


@dataclass(frozen=True)
class CpuQuota:
    """A control group with a limit on processor time."""

    path: Path
    cores: float
    """Processors' worth of time its members share."""
    version: int
    """Of control groups: 1 or 2."""

    def take(self, pid: int) -> None:
        """Make a process a member, with all it starts from now on."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def __str__(self) -> str:
        return f"cgroup v{self.version} quota of {self.cores:g} cores"


def place(name: str) -> tuple[Path, int] | None:
    """The folder a group of this name would have, and the version of control groups; None if there can be none."""
    for folder, version, file in ((ROOT / "cpu", 1, "cpu.cfs_quota_us"), (ROOT, 2, "cgroup.subtree_control")):
        if os.access(folder / file, os.W_OK) and (version == 1 or "cpu" in (folder / file).read_text().split()):
            return folder / name, version
    return None


def limit(path: Path, version: int, speed: float, cores: float) -> CpuQuota | None:
    """Make the group that gives `speed` times `cores` processors; None where the system does not let us."""
    share = speed * cores
    # A longer period where the quota of a very slow host would fall below what the kernel accepts.
    period = max(PERIOD, round(LEAST / share))
    try:
        path.mkdir()
        for file, value in _settings(version, round(share * period), period):
            (path / file).write_text(value)
    except OSError:
        return None
    return CpuQuota(path, share, version)


def how(quota: CpuQuota | None, speed: float) -> str:
    """The mechanism that slows hosts down, for the record."""
    return "full speed" if speed == 1 else str(quota) if quota else "sleep in proportion"


def rest(busy: float, speed: float) -> float:
    """Seconds to sleep after `busy` seconds of computing, so that together they take as long as at `speed`."""
    return busy / speed - busy


def usual_cores(hosts: int) -> float:
    """Processors a host of speed 1 can count on."""
    return max(1, len(os.sched_getaffinity(0)) // hosts)


def _settings(version: int, quota: int, period: int) -> list[tuple[str, str]]:
    if version == 2:
        return [("cpu.max", f"{quota} {period}")]
    return [("cpu.cfs_period_us", str(period)), ("cpu.cfs_quota_us", str(quota))]
