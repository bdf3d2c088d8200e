"""Runs side by side."""

import io
from pathlib import Path

from fake_runs import make_run, reported, step
from rich.console import Console

from shoal.watch.compare import compare_runs, draw_comparison
from shoal.watch.record import RunRecord


def three(root: Path) -> list[RunRecord]:
    slow = make_run(root, [step(1, seconds=4.0), reported(1, accuracy=0.5)], run="slow")
    fast = make_run(root, [step(1, seconds=1.0), reported(1, error=0.25)], run="fast")
    return [slow, fast, make_run(root, size=1, run="empty")]


def test_ratios_are_to_the_first(tmp_path: Path) -> None:
    slow, fast, empty = compare_runs(three(tmp_path))
    assert (slow.seconds_ratio, slow.samples_per_second_ratio) == (1.0, 1.0)
    assert (fast.seconds_ratio, fast.samples_per_second_ratio) == (0.25, 4.0)
    assert (empty.seconds_ratio, empty.samples_per_second_ratio) == (0.0, 0.0)


def test_nothing_can_be_measured_by_an_empty_run(tmp_path: Path) -> None:
    *_, fast = compare_runs(three(tmp_path)[::-1][:2])
    assert (fast.seconds_ratio, fast.samples_per_second_ratio) == (None, None)


def test_the_tables_fit_80_columns(tmp_path: Path) -> None:
    file = io.StringIO()
    Console(file=file, width=80).print(draw_comparison(compare_runs(three(tmp_path))))
    lines = [line.split() for line in file.getvalue().splitlines()]
    assert ["2", "fast", "1", "1.00", "0.25x", "10", "4.00x", "100", "B"] in lines
    assert ["accuracy", "0.5000", "-", "-"] in lines
    assert ["error", "-", "0.2500", "-"] in lines
    assert max(map(len, file.getvalue().splitlines())) <= 80
