"""What a run came to."""

from math import isnan, nan
from pathlib import Path

from fake_runs import ended, make_run, reported, started, step, tear

from shoal.core.record import StepPhases, worker_file
from shoal.watch.record import RunRecord
from shoal.watch.summary import NOT_ENDED, known_summary, read_summary, summarise, write_summary


def uneven(root: Path) -> RunRecord:
    """Worker 0 takes two short steps, worker 1 one long step and then is killed, worker 2 leaves nothing."""
    first = [started(0), step(1, seconds=1.0), step(2, seconds=1.0), ended()]
    record = make_run(root, first, [started(1), step(1, seconds=4.0, samples=40, wait=1.0)], [])
    tear(worker_file(record.dir, 1))
    return record


def test_totals_over_workers(tmp_path: Path) -> None:
    summary = summarise(uneven(tmp_path), exit=3)
    assert (summary.run, summary.plan, summary.workers) == ("run-a", "allreduce(ring)", 3)
    assert summary.dir == str(tmp_path / "run-a")
    assert (summary.steps, summary.samples, summary.seconds) == (2, 60, 4.0)
    assert summary.samples_per_second == 15.0
    assert (summary.bytes_raw, summary.bytes_sent, summary.bytes_wire) == (1200, 300, 360)
    assert summary.exit == 3


def test_phases_are_the_mean_over_all_steps_of_all_workers(tmp_path: Path) -> None:
    phases = summarise(uneven(tmp_path)).phases
    assert phases == StepPhases(exchange_wait=(0.25 + 0.25 + 1.0) / 3, forward_backward=(0.75 + 0.75 + 3.0) / 3)


def test_metrics_are_the_lowest_reporting_workers_last(tmp_path: Path) -> None:
    second = [reported(1, accuracy=0.1), reported(2, accuracy=0.8)]
    record = make_run(tmp_path, [started(0)], second, [reported(3, accuracy=0.9)])
    assert summarise(record).metrics == {"accuracy": 0.8}


def test_a_run_without_a_step(tmp_path: Path) -> None:
    summary = summarise(make_run(tmp_path, size=2))
    assert (summary.steps, summary.seconds, summary.samples_per_second) == (0, 0.0, 0.0)
    assert summary.phases == StepPhases()


def test_the_file_gives_back_what_was_written(tmp_path: Path) -> None:
    record = uneven(tmp_path)
    assert read_summary(record.dir) is None
    write_summary(record.dir, summarise(record, exit=1))
    assert read_summary(record.dir) == summarise(record, exit=1)
    assert not list(record.dir.glob("*.tmp"))


def test_a_metric_that_is_not_a_number_comes_back(tmp_path: Path) -> None:
    record = make_run(tmp_path, [reported(1, loss=nan, accuracy=0.5)])
    write_summary(record.dir, summarise(record))
    summary = read_summary(record.dir)
    assert summary is not None
    assert isnan(summary.metrics["loss"])
    assert summary.metrics["accuracy"] == 0.5


def test_the_written_summary_is_known_else_the_events(tmp_path: Path) -> None:
    record = uneven(tmp_path)
    assert known_summary(record) == summarise(record, exit=NOT_ENDED)
    write_summary(record.dir, summarise(record, exit=0))
    assert known_summary(record).exit == 0
    moved = record.dir.rename(tmp_path / "run-b")
    assert known_summary(RunRecord.open(moved)).dir == str(moved)
