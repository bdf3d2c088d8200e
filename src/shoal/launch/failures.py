"""Which worker's failure ended a run, and whether the kernel killed it for lack of memory."""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from shoal.core.clock import Deadline
from shoal.launch.worker import FailureReport


@dataclass(frozen=True)
class RunFailure:
    """What ended a run early: a worker's report, or the signal it died of."""

    rank: int
    report: FailureReport | None
    signal: int | None
    also: tuple[int, ...] = ()
    """Other workers that failed by themselves."""
    oom: bool = False
    """The signal was the kernel's, for want of memory."""
    done: bool = False
    """Others had done their work by then."""
    service: str = ""
    """What ended was not a worker but this service of the run, of `signal`."""

    @property
    def who(self) -> str:
        return self.service or f"worker {self.rank}"


@dataclass
class WorkerProcess:
    """A worker as the launcher sees it."""

    rank: int
    pid: int
    report: bytearray = field(default_factory=bytearray)
    status: int | None = None
    """Exit code, or minus the signal; None while it lives."""
    partial: dict[str, bytes] = field(default_factory=dict)
    blamed: bool = False
    """Failed before anybody asked it to stop."""
    lost: bool = False
    """Died, and the run went on."""
    left: bool = False
    """Ended well because the user took it out of the run."""
    oom: bool = False
    """Killed by the kernel for want of memory."""


def blame(workers: Sequence[WorkerProcess]) -> RunFailure | None:
    """What ended the run; None if all that were not lost on the way did well."""
    failed = [worker for worker in workers if worker.status != 0 and not worker.lost]
    if not failed:
        return None
    reports = {worker.pid: parse(worker.report) for worker in failed}
    own = [w for w in failed if (r := reports[w.pid]) is not None and not r.peer]
    # the one that failed before others were asked to stop, and that blames no other itself
    first = next((w for w in failed if w.blamed and not secondary(reports[w.pid])), None)
    if first is None or (first.status is not None and first.status > 0 and first not in own and own):
        first = own[0] if own else failed[0]
    report = reports[first.pid]
    died = report is None and first.status is not None and first.status < 0  # with a report, we ended it
    also = tuple(worker.rank for worker in own if worker is not first)
    done = any(worker.status == 0 and not worker.left for worker in workers)
    return RunFailure(first.rank, report, -first.status if died and first.status else None, also, first.oom, done)


def secondary(report: FailureReport | None) -> bool:
    return report is not None and report.peer


def set_aside(worker: WorkerProcess) -> str:
    """Why the others go on without a worker that still had time to say so; empty if it did not."""
    report = parse(worker.report)
    return "" if report is None else report.quarantined or ("evicted" if report.evicted else "")


def parse(data: bytes | bytearray) -> FailureReport | None:
    if not data:
        return None
    try:
        return msgspec.json.decode(bytes(data), type=FailureReport)
    except msgspec.DecodeError:
        return None  # it was killed while it wrote


ROOT = Path("/sys/fs/cgroup")
LOOK = 0.25
"""Seconds between two looks at where the workers are."""


class OutOfMemoryWatch:
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
            file = kill_counter_file(pid)
            if file is not None and (pid not in self._where or file.parent not in (ROOT, ROOT / "memory")):
                self._where[pid] = file  # the dying are counted to the root: where they were before is what matters
                self._counts.setdefault(file, count_kills(file))

    def killed(self, pid: int) -> bool:
        """Whether there is a kill in the group of `pid` that no death before it accounts for."""
        file = self._where.pop(pid, None)
        if file is None:
            return False
        before, self._counts[file] = self._counts[file], count_kills(file)
        return self._counts[file] > before


def kill_counter_file(pid: int) -> Path | None:
    """The file that counts kills in the group of a living process."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        number, kinds, group = line.split(":", 2)
        # cgroup v1: a hierarchy for each kind of resource
        if "memory" in kinds.split(","):
            return _there(ROOT / "memory" / group.lstrip("/") / "memory.oom_control")
        # cgroup v2: the single hierarchy
        if number == "0" and (file := _there(ROOT / group.lstrip("/") / "memory.events.local")):
            return file
    return None


def count_kills(file: Path) -> int:
    """How many it counts; 0 if it is gone."""
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    return 0


def _there(file: Path) -> Path | None:
    return file if file.exists() else None
