"""What a running job shows, without threads and on stderr."""

import io
import sys
import threading
from dataclasses import replace
from math import nan

import pytest
from rich.console import Console

from shoal.watch.live import PlainDisplay, TableDisplay, WorkerRow, open_display


def rows(front: int, loss: float = 0.4321) -> list[WorkerRow]:
    common = {"epoch": 0, "state": "training", "samples": front * 50, "bytes_sent": front * 500_000}
    return [
        WorkerRow(rank=0, pid=11, step=front, loss=loss, **common),
        WorkerRow(rank=1, pid=12, step=front - 7, loss=nan, **common),
    ]


def test_plain_lines_come_at_most_every_five_seconds() -> None:
    display = PlainDisplay(file := io.StringIO())
    for tenth in range(121):
        display.update(rows(10 * tenth), tenth / 10)
    display.stop()
    first, second = file.getvalue().splitlines()
    assert first == "step 500  loss 0.4321  10000 samples/s  100.0 MB/s"
    assert second.startswith("step 1000  ")


def test_where_nobody_counts_samples_steps_are_shown() -> None:
    display = PlainDisplay(file := io.StringIO())
    for second in range(6):
        display.update([replace(row, samples=0) for row in rows(10 * second)], float(second))
    assert file.getvalue() == "step 50  loss 0.4321  10.0 steps/s  10.0 MB/s\n"


def test_no_loss_is_not_shown() -> None:
    display = PlainDisplay(file := io.StringIO())
    display.update(rows(1, loss=nan), 5.0)
    assert file.getvalue() == "step 1  0 samples/s  0 B/s\n"


def test_the_live_table_shows_who_is_behind() -> None:
    threads = threading.active_count()
    console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    display = TableDisplay(console)
    display.update(rows(120), 2.0)
    display.print("a line [above]")
    assert threading.active_count() == threads
    display.stop()
    display.stop()
    shown = console.file.getvalue()
    assert "step 120  loss 0.4321" in shown
    assert "a line [above]" in shown
    assert "1 12 0 113 7 - 6000 60.0 MB training" in [" ".join(line.split()) for line in shown.splitlines()]


def test_the_streams_are_left_alone() -> None:
    before = sys.stdout, sys.stderr
    display = TableDisplay(Console(file=io.StringIO(), force_terminal=True))
    display.update([], 0.0)
    assert (sys.stdout, sys.stderr) == before
    display.stop()


def test_what_is_not_a_terminal_gets_lines_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    display = open_display()
    assert isinstance(display, PlainDisplay)
    display.print("hello")
    assert capsys.readouterr() == ("", "hello\n")
