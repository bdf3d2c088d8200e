"""The page: everything is there, at 80 columns, whatever the record holds."""

import io
from pathlib import Path

from fake_runs import ended, logged, make_run, reported, started, step, tear
from rich.console import Console

from shoal.core.events import BatchesFetched, TrafficCounted, WarningRaised, WorkerEntered
from shoal.core.record import StepPhases, worker_file
from shoal.watch.draw import draw_run
from shoal.watch.draw.bars import phase_bars
from shoal.watch.draw.tables import workers_table
from shoal.watch.record import RunRecord
from shoal.watch.worker import WorkerRecord


def text_of(renderable: object) -> str:
    file = io.StringIO()
    Console(file=file, width=80).print(renderable)
    assert max(map(len, file.getvalue().splitlines()), default=0) <= 80
    return file.getvalue()


def full(root: Path) -> RunRecord:
    traffic = TrafficCounted(at=1.0, step=2, peers={"1": (2_000_000, 0)})
    warned = WarningRaised(at=1.0, text="mind the [bold]gap[/bold]\x1b[31m")
    first = [started(0), step(1), logged(1, loss=2.0), step(2), logged(2, loss=1.0), traffic, warned]
    second = [started(1), step(1), ended("failed", "ValueError: [red]no\n")]
    first += [reported(2, accuracy=0.875), ended()]
    record = make_run(root, first, second, [started(2), step(1)], size=4)
    tear(worker_file(record.dir, 2))
    return record


def test_the_page_shows_where_batches_were_prepared(tmp_path: Path) -> None:
    few = BatchesFetched(at=1.0, step=1, batches=[7, 8], bytes=5_000_000, local=1, waited=0.25, overdue=2, lost=3)
    many = BatchesFetched(at=1.0, step=1, batches=[*range(1, 21)], bytes=0, local=0, waited=0.0)
    page = text_of(draw_run(make_run(tmp_path, [started(0), step(1), few, ended()], [started(1), step(1), many])))
    (row,) = [line.split() for line in page.splitlines() if "7 8" in line]
    assert row[:8] == ["0", "7", "8", "1", "5.0", "MB", "2", "3"]
    assert row[8:10] == ["0.25", "s"]
    assert "20 of 1 to 20" in page


def test_the_page_shows_every_part(tmp_path: Path) -> None:
    page = text_of(draw_run(full(tmp_path)))
    for part in ("run-a", "allreduce(ring)", "train.py", "shoal 0.1.0", "loss, mean", "exchange wait"):
        assert part in page
    assert "2 steps, 40 samples in 2.00 s: 20 samples/s" in page
    assert "worker 1 failed: ValueError: [red]no\n" in page
    assert "worker 3 silent" in page
    assert "0.8750" in page
    assert "to 1: 2.0 MB" in page
    assert "worker 0: mind the [bold]gap[/bold] [31m\n" in page


def test_a_run_that_has_only_begun_is_drawn(tmp_path: Path) -> None:
    page = text_of(draw_run(make_run(tmp_path, [], size=2)))
    assert "no step was taken" in page
    assert "mean step" not in page
    assert "metrics" not in page


def test_who_came_later_and_what_the_others_waited_for(tmp_path: Path) -> None:
    streamed = WorkerEntered(at=1.0, step=152, given=26_000, streamed=10_900_000, updates=100, seconds=5.2)
    whole = WorkerEntered(at=1.0, step=7, given=8_400_000, seconds=3.0, why="a step changes much (3 bytes of 4)")
    page = text_of(draw_run(make_run(tmp_path, [started(0), streamed, whole, ended()])))
    page = " ".join(page.split())
    assert "worker 0 at step 152, after 5.20 s: 10.9 MB were streamed while the others trained (100 updates)" in page
    assert "they waited for 26.0 kB" in page
    assert "the others waited for 8.4 MB; nothing was streamed: a step changes much (3 bytes of 4)" in page


def test_bars_are_shares_of_the_step() -> None:
    lines = text_of(phase_bars(StepPhases(load=0.001, exchange_wait=0.003))).splitlines()
    assert [line.count("█") for line in lines] == [10, 0, 30, 0, 0, 0]
    assert lines[0].split()[-3:] == ["25%", "1.00", "ms"]
    assert lines[2].split()[-3:] == ["75%", "3.00", "ms"]


def test_large_figures_fit_the_workers_table() -> None:
    large = {"steps": 999_999, "samples": 10**9, "samples_per_second": 123456.7, "bytes_sent": 10**14}
    worker = WorkerRecord(rank=127, host="a-very-long-host-name", pid=4194304, seconds=1e7, state="running", **large)
    line = text_of(workers_table([worker])).splitlines()[-1]
    assert " ".join(line.split()) == "127 a-very-l 4194304 999999 1.0G 123457 10000 0.00 100.0 TB running"
