"""A journal stays below its limit however many steps are made, and its readers do not notice."""

import os
import threading
from itertools import pairwise
from pathlib import Path

import pytest

from shoal.core import compaction, journal
from shoal.core.compaction import adopt, compact, part_of
from shoal.core.disk import FileOperations
from shoal.core.events import AnyEvent, FileCompacted, ResultsReported, StepFinished, ValuesLogged, WorkerStarted
from shoal.core.journal import LIMIT, EventJournal
from shoal.watch.tail import JournalTail
from shoal.watch.worker import tally

PHASES = {"load": 0.001, "forward_backward": 0.002, "exchange_wait": 0.003, "encode": 0.004, "update": 0.005}
MANY = tuple(0.001 * n for n in range(20))


def events_of(number: int) -> list[AnyEvent]:
    """What a worker with 20 buckets writes of a step."""
    found: list[AnyEvent] = [ValuesLogged(at=1.0, step=number, values={"loss": 1.0 / (number + 1)})]
    found += [
        StepFinished(
            at=1.0, step=number, epoch=number // 100, samples=4, seconds=0.02, sent=7, ready=MANY, done=MANY, **PHASES
        )
    ]
    return found + [ResultsReported(at=1.0, step=number, epoch=0, metrics={"n": float(number)})] * (
        number % 1000 == 999
    )


def write(path: Path, first: int, last: int, limit: int = LIMIT) -> int:
    """Record some steps; the most bytes the journal had."""
    writer, most = EventJournal(path, limit), 0
    for number in range(first, last):
        for event in events_of(number):
            writer.emit(event)
        if number % 100 == 0:
            writer.flush()
            if writer._thread is not None:
                writer._thread.join()
            most = max(most, path.stat().st_size)
    writer.close()
    return most


def check(path: Path, steps: int) -> None:
    worker = tally(0, JournalTail(path).read())
    assert (worker.steps, worker.samples, worker.bytes_sent) == (steps, 4 * steps, 7 * steps)
    assert worker.seconds == pytest.approx(0.02 * steps)
    assert worker.phases.encode == pytest.approx(0.004)
    assert worker.metrics == {"n": float(steps - 1)}


def test_a_journal_stays_below_its_limit_and_keeps_its_totals(tmp_path: Path) -> None:
    """In the small: 400 kB where there are 32 MB, and 10,000 steps where there are a million."""
    most = write(tmp_path / "it", 0, 10_000, 400_000)
    assert most < 700_000
    assert (tmp_path / "it").stat().st_size < 600_000
    check(tmp_path / "it", 10_000)
    logged = [event for event in JournalTail(tmp_path / "it").read() if isinstance(event, ValuesLogged)]
    assert sum(event.steps for event in logged) == 10_000
    assert [event.step for event in logged] == sorted(event.step for event in logged)
    assert logged[-1] == events_of(9_999)[0], "the newest are as they were"


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_million_steps_stay_below_100_megabytes(tmp_path: Path) -> None:
    assert write(tmp_path / "it", 0, 1_000_000) < 60 << 20
    check(tmp_path / "it", 1_000_000)


def test_another_process_goes_on_with_it(tmp_path: Path) -> None:
    for first in range(0, 4000, 1000):
        write(tmp_path / "it", first, first + 1000, 200_000)
    check(tmp_path / "it", 4000)


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.mark.parametrize("fatal", ["create", "write", "sync", "extend", "rename"])
def test_killed_at_any_moment_it_has_lost_nothing(tmp_path: Path, fatal: str) -> None:
    class Deadly(FileOperations):
        pass

    def die(*_: object) -> None:
        raise Killed

    setattr(Deadly, fatal, die)
    write(tmp_path / "it", 0, 1000)
    before = (tmp_path / "it").read_bytes()
    with pytest.raises(Killed):
        adopt(tmp_path / "it", compact(tmp_path / "it", 300_000, 100_000, Deadly()), Deadly())
    assert (tmp_path / "it").read_bytes() == before
    write(tmp_path / "it", 1000, 2000)
    assert not part_of(tmp_path / "it").exists()
    check(tmp_path / "it", 2000)


def test_whoever_follows_a_journal_sees_every_event_once_also_across_compactions(tmp_path: Path) -> None:
    tail, path, seen = JournalTail(tmp_path / "it"), tmp_path / "it", list[AnyEvent]()
    for first in range(0, 3000, 100):
        write(path, first, first + 100)
        seen += tail.read()
        if first % 500 == 0 and first:
            adopt(path, compact(path, path.stat().st_size - 20_000, 20_000))
    assert [event.step for event in seen if isinstance(event, StepFinished)] == list(range(3000))
    assert not any(isinstance(event, FileCompacted) for event in seen)


def test_what_is_appended_while_it_is_compacted_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, real = threading.Event(), compaction.compact

    def slow(path: Path, through: int, target: int) -> int:
        assert go.wait(30)
        return real(path, through, target)

    monkeypatch.setattr(journal, "compact", slow)
    write(tmp_path / "it", 0, 1000)
    writer = EventJournal(tmp_path / "it", 100_000)
    writer.emit(WorkerStarted(at=0.0, rank=0, size=1, host="h", pid=1, threads=1, device="cpu"))
    writer.flush()
    for number in range(1000, 2000):
        for event in events_of(number):
            writer.emit(event)
    writer.flush()
    go.set()
    writer.close()
    assert (tmp_path / "it").stat().st_size < 1_000_000
    check(tmp_path / "it", 2000)


def test_a_full_disk_leaves_the_journal_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def full(path: Path, *_: object) -> int:
        tries.append(path.stat().st_size)
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(journal, "compact", full)
    write(tmp_path / "it", 0, 1000, 100_000)
    assert len(tries) > 1, "it is tried again when the journal has grown"
    assert all(later - before >= 50_000 for before, later in pairwise(tries))
    assert [e.step for e in JournalTail(tmp_path / "it").read() if isinstance(e, StepFinished)] == list(range(1000))
