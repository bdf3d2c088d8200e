"""Small records of runs that never happened."""

from collections.abc import Iterable
from pathlib import Path

from shoal.core.events import ResultsReported, RunEvent, StepFinished, ValuesLogged, WorkerEnded, WorkerStarted
from shoal.core.journal import EventJournal
from shoal.core.record import RunInfo, worker_file, write_info
from shoal.watch.record import RunRecord

NO_PID = 2**22 + 1
"""One more than the highest process id Linux gives out."""


def make_run(
    root: Path, *workers: Iterable[RunEvent], run: str = "run-a", began: float = 100.0, size: int = 0
) -> RunRecord:
    """Write a run with the given events per worker."""
    info = RunInfo(
        run=run,
        plan="allreduce(ring)",
        workers=size or len(workers),
        seed=7,
        script="train.py",
        command=["train.py"],
        started=began,
        versions={"shoal": "0.1.0"},
        machine={"host": "here", "cores": 2},
    )
    write_info(root / run, info)
    for rank, events in enumerate(workers):
        append(worker_file(root / run, rank), events)
    return RunRecord.open(root / run)


def append(path: Path, events: Iterable[RunEvent]) -> None:
    journal = EventJournal(path)
    for event in events:
        journal.emit(event)
    journal.close()


def tear(path: Path, text: bytes = b'{"event":"step","at":1') -> None:
    """Append a line that was never finished."""
    with path.open("ab") as file:
        file.write(text)


def started(rank: int = 0, host: str = "elsewhere", pid: int = NO_PID) -> WorkerStarted:
    return WorkerStarted(at=100.0, rank=rank, size=2, host=host, pid=pid, threads=1, device="cpu")


def step(number: int, seconds: float = 1.0, samples: int = 10, wait: float = 0.25) -> StepFinished:
    phases = {"load": 0.0, "encode": 0.0, "update": 0.0, "forward_backward": seconds - wait}
    sizes = {"raw": 400, "sent": 100, "wire": 120}
    return StepFinished(
        at=100.0 + number,
        step=number,
        epoch=0,
        samples=samples,
        seconds=seconds,
        exchange_wait=wait,
        **phases,
        **sizes,
    )


def logged(number: int, **values: float) -> ValuesLogged:
    return ValuesLogged(at=100.0 + number, step=number, values=values)


def reported(number: int, **metrics: float) -> ResultsReported:
    return ResultsReported(at=100.0 + number, step=number, epoch=0, metrics=metrics)


def ended(exit: str = "done", error: str = "") -> WorkerEnded:  # noqa: A002
    return WorkerEnded(at=200.0, exit=exit, error=error)
