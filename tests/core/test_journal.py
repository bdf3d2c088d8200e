"""The record on disk survives a crash, whole line by whole line."""

import errno
import os
import re
from pathlib import Path

import pytest

from shoal.core import clock, journal
from shoal.core.events import (
    AnyEvent,
    NullSink,
    ResultsReported,
    StepFinished,
    TrafficCounted,
    ValuesLogged,
    WarningRaised,
    WorkerEnded,
    WorkerStarted,
)
from shoal.core.journal import FLUSH_SECONDS, EventJournal
from shoal.watch.tail import JournalTail

PHASES = {"load": 0.1, "forward_backward": 0.2, "exchange_wait": 0.3, "encode": 0.4, "update": 0.5}
EVERY: list[AnyEvent] = [
    WorkerStarted(at=1.0, rank=0, size=2, host="here", pid=7, threads=1, device="cpu"),
    StepFinished(at=2.0, step=1, epoch=0, samples=8, seconds=1.5, sent=9, ready=(0.1, 0.2), done=(0.3,), **PHASES),
    ValuesLogged(at=3.0, step=1, values={"loss": 0.5}),
    ResultsReported(at=4.0, step=1, epoch=0, metrics={"accuracy": 0.5}),
    TrafficCounted(at=5.0, step=1, peers={"1": (10, 20)}),
    WarningRaised(at=6.0, text="two\nlines, and é"),
    WorkerEnded(at=7.0, exit="failed", error="ValueError: no"),
]


def write(path: Path, events: list[AnyEvent]) -> Path:
    writer = EventJournal(path)
    for event in events:
        writer.emit(event)
    writer.close()
    return path


def test_every_kind_of_event_comes_back(tmp_path: Path) -> None:
    path = write(tmp_path / "it", EVERY)
    assert list(JournalTail(path).read()) == EVERY
    assert path.read_bytes().count(b"\n") == len(EVERY)


def test_wherever_it_is_cut_the_whole_lines_are_read(tmp_path: Path) -> None:
    whole = write(tmp_path / "it", EVERY).read_bytes()
    for end in range(len(whole)):
        (tmp_path / "torn").write_bytes(whole[:end])
        found = list(JournalTail(tmp_path / "torn").read())
        assert found == EVERY[: len(found)]
        assert len(found) >= whole[:end].count(b"\n")


def test_a_foreign_line_is_passed_over(tmp_path: Path) -> None:
    path = write(tmp_path / "it", EVERY[:1])
    with path.open("ab") as file:
        file.write(b'{"event":"unheard-of","at":1.0}\n\nnot json\n')
    write(path, EVERY[1:])
    assert list(JournalTail(path).read()) == EVERY


def test_reading_may_start_at_a_byte(tmp_path: Path) -> None:
    path = write(tmp_path / "it", EVERY[:3])
    start = path.stat().st_size
    write(path, EVERY[3:])
    assert list(JournalTail(path, start).read()) == EVERY[3:]


def test_events_reach_the_file_within_half_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moment = [0.0]
    monkeypatch.setattr(clock, "now", lambda: moment[0])
    writer = EventJournal(tmp_path / "it")
    writer.emit(EVERY[0])
    assert (tmp_path / "it").stat().st_size == 0
    moment[0] = FLUSH_SECONDS
    writer.emit(EVERY[1])
    assert list(JournalTail(tmp_path / "it").read()) == EVERY[:2]
    writer.emit(EVERY[2])
    writer.flush()
    assert list(JournalTail(tmp_path / "it").read()) == EVERY[:3]
    writer.close()


def test_a_full_buffer_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "FLUSH_BYTES", 100)
    monkeypatch.setattr(clock, "now", lambda: 0.0)
    writer = EventJournal(tmp_path / "it")
    writer.emit(WarningRaised(at=1.0, text="x" * 100))
    assert len(list(JournalTail(tmp_path / "it").read())) == 1
    writer.close()
    writer.close()


def test_nowhere_forgets() -> None:
    for event in EVERY:
        assert NullSink().emit(event) is None  # type: ignore[func-returns-value]


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that the disk still takes."""
    left, real = [1 << 30], os.write

    def write(file: int, data: bytes) -> int:
        if file > 2 and left[0] < len(data):
            if not left[0]:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[: left[0]]
        left[0] -= len(data)
        return real(file, data)

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(journal.DISK, "reserve", lambda file, begin, size: left[0] > size)
    return left


def step(number: int) -> StepFinished:
    return StepFinished(at=2.0, step=number, epoch=0, samples=8, seconds=1.5, **PHASES)


def totals(path: Path) -> tuple[int, int]:
    made = [event for event in JournalTail(path).read() if isinstance(event, StepFinished)]
    return sum(event.steps for event in made), sum(event.samples for event in made)


@pytest.mark.parametrize("left", [0, 10, 333])
def test_on_a_full_disk_events_are_merged_until_there_is_room(
    tmp_path: Path, room: list[int], capsys: pytest.CaptureFixture[str], left: int
) -> None:
    writer = EventJournal(tmp_path / "it")
    for number in range(300):
        room[0] = left if number == 10 else 1 << 30 if number == 290 else room[0]
        writer.emit(step(number))
        writer.flush()
    writer.close()
    assert totals(tmp_path / "it") == (300, 8 * 300)
    (warning,) = [event.text for event in JournalTail(tmp_path / "it").read() if isinstance(event, WarningRaised)]
    assert re.fullmatch("the disk was full: 28[01] events of this record were merged", warning)
    said = capsys.readouterr().err
    assert said == f"shoal: the record {tmp_path / 'it'} cannot grow: No space left on device; training goes on\n"


def test_the_end_of_a_record_fits_into_the_room_that_was_kept(tmp_path: Path, room: list[int]) -> None:
    writer = EventJournal(tmp_path / "it")
    writer.emit(step(0))
    writer.flush()
    room[0] = journal.ROOM
    for number in range(1, 500):
        writer.emit(step(number))
        writer.flush()
    assert journal.ROOM // 3 < room[0] < journal.ROOM
    writer.emit(EVERY[-1])
    writer.close()
    assert totals(tmp_path / "it") == (500, 4000)
    assert EVERY[-1] in list(JournalTail(tmp_path / "it").read())


def test_what_finds_no_room_to_the_end_is_counted(
    tmp_path: Path, room: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    writer = EventJournal(tmp_path / "it")
    room[0] = 0
    for number in range(400):
        writer.emit(WarningRaised(at=1.0, text=str(number)))
        writer.flush()
    writer.close()
    assert f"shoal: the record {tmp_path / 'it'} lacks 400 events" in capsys.readouterr().err


def test_what_cannot_be_merged_is_dropped_and_counted(tmp_path: Path, room: list[int]) -> None:
    writer = EventJournal(tmp_path / "it")
    for number in range(400):
        room[0] = 0 if number < 399 else 1 << 30
        writer.emit(WarningRaised(at=1.0, text=str(number)))
        writer.flush()
    writer.close()
    found = [event.text for event in JournalTail(tmp_path / "it").read() if isinstance(event, WarningRaised)]
    assert len(found) == journal.MOST_HELD + 1
    assert found[-1] == "the disk was full: 400 events of this record were merged, and 200 of them dropped"
