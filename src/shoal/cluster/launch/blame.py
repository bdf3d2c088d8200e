"""Who is to blame for the end of a run: the first that failed by itself, not whoever lost it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from shoal.cluster.launch.worker import Report


@dataclass(frozen=True)
class Failure:
    """What ended a run early: a worker's report, or the signal it died of."""

    rank: int
    report: Report | None
    signal: int | None
    also: tuple[int, ...] = ()
    """Other workers that failed by themselves."""
    oom: bool = False
    """The signal was the kernel's, for want of memory."""
    done: bool = False
    """Others had done their work by then."""


@dataclass
class Worker:
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
    oom: bool = False
    """Killed by the kernel for want of memory."""


def blame(workers: Sequence[Worker]) -> Failure | None:
    """What ended the run; None if all that were not lost on the way did well."""
    failed = [worker for worker in workers if worker.status != 0 and not worker.lost]
    if not failed:
        return None
    reports = {worker.pid: parse(worker.report) for worker in failed}
    own = [w for w in failed if (r := reports[w.pid]) is not None and not r.peer]
    first = next((w for w in failed if w.blamed and not secondary(reports[w.pid])), None)
    if first is None or (first.status is not None and first.status > 0 and first not in own and own):
        first = own[0] if own else failed[0]
    report = reports[first.pid]
    died = report is None and first.status is not None and first.status < 0  # with a report, we ended it
    also = tuple(worker.rank for worker in own if worker is not first)
    done = any(worker.status == 0 for worker in workers)
    return Failure(first.rank, report, -first.status if died and first.status else None, also, first.oom, done)


def secondary(report: Report | None) -> bool:
    return report is not None and report.peer


def parse(data: bytes | bytearray) -> Report | None:
    if not data:
        return None
    try:
        return msgspec.json.decode(bytes(data), type=Report)
    except msgspec.DecodeError:
        return None  # it was killed while it wrote
