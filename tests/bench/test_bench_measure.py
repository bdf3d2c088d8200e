"""What is read from a record: warm-up, parts, curves."""

from pathlib import Path

import msgspec
import pytest
from made_up import measured, step, trial

from shoal.bench.measure import ReportPoint, after_warm_up, curve, measure, part_of, seconds_to
from shoal.core.events import AnyEvent, ResultsReported, WorkerStarted
from shoal.core.goal import TrainingGoal
from shoal.core.journal import EventJournal
from shoal.core.merging import merged
from shoal.core.record import RunInfo, worker_file, write_info
from shoal.watch.record import RunRecord

START = WorkerStarted(at=0.0, rank=0, size=1, host="here", pid=1, threads=1, device="cpu")


def report(number: int, accuracy: float) -> ResultsReported:
    return ResultsReported(at=0.0, step=number, epoch=0, metrics={"accuracy": accuracy})


def test_the_first_epoch_is_warm_up() -> None:
    steps = [step(n, epoch=n // 3) for n in range(9)]
    assert [s.step for s in after_warm_up(steps)] == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(("number", "kept"), [(30, 20), (12, 6), (1, 1), (0, 0)])
def test_of_a_single_epoch_ten_steps_but_never_more_than_half(number: int, kept: int) -> None:
    assert len(after_warm_up([step(n) for n in range(number)])) == kept


def test_the_curve_counts_training_seconds_before_each_report() -> None:
    events = [step(0), step(1), report(2, 0.5), step(2, seconds=3.0), report(3, 0.9)]
    points = curve(events)
    assert [(p.seconds, p.metrics["accuracy"]) for p in points] == [(2.0, 0.5), (5.0, 0.9)]
    assert seconds_to(TrainingGoal.parse("accuracy>=0.9"), points) == 5.0
    assert seconds_to(TrainingGoal.parse("accuracy>=0.95"), points) is None
    assert seconds_to(TrainingGoal.parse("accuracy>0"), [ReportPoint(1.0, {"loss": 0.0}), *points]) == 2.0


def test_parts_of_older_records() -> None:
    assert part_of(step(0), "forward") + part_of(step(0), "backward") == pytest.approx(0.5)
    assert part_of(msgspec.structs.replace(step(0), forward=0.0), "backward") == pytest.approx(0.5)


def test_cost_is_cores_for_the_time_to_the_goal() -> None:
    goal = TrainingGoal.parse("accuracy>=0.8")
    assert trial(0, 0.1, goal=goal, price=3.6).cost == pytest.approx(3.6 * measured(0.1).cores * 5.0 / 3600)
    assert trial(0, 0.1, price=3.6).cost == pytest.approx(3.6 * 4 * 10.0 / 3600)
    assert trial(0, 0.1, goal=TrainingGoal.parse("accuracy>1"), price=3.6).cost is None
    assert trial(0, 0.1).cost is None


def test_merged_steps_count_as_many(tmp_path: Path) -> None:
    plain = [step(n, epoch=n // 20, seconds=1.0 + n) for n in range(100)]
    events = ([START, *plain], [START, *merged(plain, 16)])
    one, other = (measure(make_record(tmp_path / str(n), found)) for n, found in enumerate(events))
    assert (other.steps, other.seconds) == (one.steps, pytest.approx(one.seconds)) == (100, pytest.approx(5050.0))
    assert other.step_seconds == pytest.approx(one.step_seconds)
    assert other.parts == pytest.approx(one.parts)
    assert other.samples_per_second == pytest.approx(one.samples_per_second)


def make_record(directory: Path, events: list[AnyEvent]) -> RunRecord:
    words = {"run": "one", "plan": "alone", "workers": 1, "seed": 0, "script": "s.py", "started": 0.0}
    write_info(directory, RunInfo(**words, command=[], versions={}, machine={}))  # type: ignore[arg-type]
    journal = EventJournal(worker_file(directory, 0))
    for event in events:
        journal.emit(event)
    journal.close()
    return RunRecord.open(directory)
