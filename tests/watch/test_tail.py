"""A growing file gives each whole line once."""

from math import isnan
from pathlib import Path

from fake_runs import append, logged, tear

from shoal.watch.tail import JournalTail, decode


def test_each_event_comes_once_while_the_file_grows(tmp_path: Path) -> None:
    tail = JournalTail(tmp_path / "worker-0.jsonl")
    assert list(tail.read()) == []
    append(tail.path, [logged(1, loss=1.0)])
    assert list(tail.read()) == [logged(1, loss=1.0)]
    append(tail.path, [logged(2, loss=0.5)])
    assert list(tail.read()) == [logged(2, loss=0.5)]
    assert list(tail.read()) == []


def test_a_torn_line_waits_for_its_newline(tmp_path: Path) -> None:
    append(whole := tmp_path / "whole", [logged(1, loss=1.0)])
    line = whole.read_bytes()
    tail = JournalTail(tmp_path / "worker-0.jsonl")
    for end in range(len(line)):
        tail.path.write_bytes(line[:end])
        assert list(tail.read()) == []
    tail.path.write_bytes(line)
    assert list(tail.read()) == [logged(1, loss=1.0)]


def test_reading_may_be_abandoned_midway(tmp_path: Path) -> None:
    events = [logged(number, loss=1.0) for number in range(5)]
    append(tmp_path / "worker-0.jsonl", events)
    tail = JournalTail(tmp_path / "worker-0.jsonl")
    assert next(tail.read()) == events[0]
    assert list(tail.read()) == events[1:]


def test_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.jsonl"
    tear(
        path,
        b'not json\n{"event":"unheard-of","at":1.0}\n\xff\n{"event":"warned","at":1,"text":"\xff"}\n\n[]\n',
    )
    append(path, [logged(1, loss=1.0)])
    assert list(JournalTail(path).read()) == [logged(1, loss=1.0)]


def test_a_value_that_is_not_a_number_survives_json(tmp_path: Path) -> None:
    append(tmp_path / "it", [logged(3, loss=float("nan"), norm=2.0)])
    event = decode((tmp_path / "it").read_bytes())
    assert event is not None
    assert event.step == 3
    assert isnan(event.values["loss"])
    assert event.values["norm"] == 2.0
