"""Core-seconds of stages, from the events of the workers that were there."""

from pathlib import Path

import pytest

from shoal.core.events import RunEvent, StageBegan, WorkerEnded, WorkerStarted
from shoal.core.journal import EventJournal
from shoal.core.record import RunInfo, worker_file, write_info
from shoal.watch.record import RunRecord
from shoal.watch.stages import StageCost, measure_stages


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    info = RunInfo(
        run="one", plan="allreduce", workers=1, seed=0, script="", command=[], started=0.0, versions={}, machine={}
    )
    write_info(tmp_path / "one", info)
    return tmp_path / "one"


def write(folder: Path, rank: int, *events: RunEvent) -> None:
    journal = EventJournal(worker_file(folder, rank))
    for event in events:
        journal.emit(event)
    journal.close()


def started(at: float, rank: int, threads: int = 1) -> WorkerStarted:
    return WorkerStarted(at=at, rank=rank, size=1, host="h", pid=1, threads=threads, device="cpu")


def stage(at: float, name: str, workers: int) -> StageBegan:
    return StageBegan(at=at, step=0, stage=name, workers=workers)


def ended(at: float) -> WorkerEnded:
    return WorkerEnded(at=at, exit="done")


def record(folder: Path) -> RunRecord:
    return RunRecord.open(folder)


def test_a_worker_counts_from_its_start_and_with_its_threads(folder: Path) -> None:
    write(folder, 0, started(0, 0), stage(1, "a", 1), stage(5, "b", 2), stage(8, "a", 1), ended(10))
    write(folder, 1, started(6, 1, threads=2), stage(7, "b", 2), ended(8))
    assert measure_stages(record(folder)) == [StageCost("a", 1, 2, 7.0, 7.0), StageCost("b", 2, 1, 3.0, 3.0 + 4.0)]


def test_a_worker_that_was_killed_counts_until_its_last_word(folder: Path) -> None:
    write(folder, 0, started(0, 0), stage(0, "a", 1), stage(4, "b", 1), started(9, 0), stage(9, "b", 1), ended(10))
    assert measure_stages(record(folder)) == [StageCost("a", 1, 1, 4.0, 4.0), StageCost("b", 1, 2, 1.0, 1.0)]


def test_a_run_without_stages_has_none(folder: Path) -> None:
    write(folder, 0, started(0, 0), ended(2))
    assert measure_stages(record(folder)) == []
