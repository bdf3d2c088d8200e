"""What the page knows of a run agrees with what `shoal show` computes from all of it."""

from pathlib import Path

import msgspec
import pytest
from fake_runs import append, ended, logged, make_run, reported, started, step

from shoal.core.events import LayerTimes, ModelsJoined, StepFinished, WorkerStarted
from shoal.core.record import worker_file, write_attempt
from shoal.watch.page import run_state, sampling
from shoal.watch.page.recent import SINGLE, RecentSteps
from shoal.watch.page.run_state import RunState
from shoal.watch.record import RunRecord
from shoal.watch.worker import read_workers

STEPS = 300


def long_run(root: Path, steps: int = STEPS) -> RunRecord:
    def events(rank: int) -> list[object]:
        middle = [each for n in range(steps) for each in (step(n), logged(n, loss=1 / (n + 1)))]
        return [started(rank), *middle, reported(steps, accuracy=0.5), ended()]

    return make_run(root, events(0), events(1))  # type: ignore[arg-type]


def read_all(directory: Path) -> RunState:
    state = RunState(directory)
    while not state.caught_up:
        state.read()
    return state


def test_totals_are_those_of_the_record(tmp_path: Path) -> None:
    record = long_run(tmp_path)
    state = read_all(record.dir)
    assert state.records() == read_workers(record)
    assert not state.sampled
    assert state.scalars["loss"].means(0)[0] == 1.0
    assert [report.metrics for report in state.reports] == [{"accuracy": 0.5}]


def test_a_reader_that_is_interrupted_goes_on(tmp_path: Path) -> None:
    record = long_run(tmp_path)
    state = RunState(record.dir)
    rounds = 0
    while not state.caught_up:
        state.read(0.0)  # one event of each worker at a time
        rounds += 1
    assert rounds > STEPS
    assert state.records() == read_workers(record)


def test_new_lines_are_read_once(tmp_path: Path) -> None:
    record = make_run(tmp_path, [started(), step(0)])
    state = read_all(record.dir)
    assert not state.read()
    append(worker_file(record.dir, 0), [step(1), logged(1, loss=2.0)])
    assert state.read()
    assert state.records()[0].steps == 2
    assert not state.read()


def test_a_large_record_is_sampled_and_its_totals_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = long_run(tmp_path, 3000)
    for name, value in (("WHOLE", 1), ("HEAD", 4096), ("END", 8192), ("PIECE", 2048)):
        monkeypatch.setattr(sampling, name, value)
    monkeypatch.setattr(run_state, "MOST_PIECES", 40)
    state, whole = RunState(record.dir), read_workers(record)
    while not state.caught_up:
        state.read(0.0)
    worker = state.workers[0]
    assert state.sampled
    assert worker.counted < 1500
    found = state.records()[0]
    assert (found.steps, found.samples) == (3000, whole[0].samples)
    assert found.seconds == pytest.approx(whole[0].seconds)
    assert found.state == "done"


def test_steps_that_a_later_attempt_took_back_do_not_count(tmp_path: Path) -> None:
    record = make_run(tmp_path, [started(), *(step(n) for n in range(10))])
    state = read_all(record.dir)
    assert state.records()[0].steps == 10
    write_attempt(record.dir, msgspec.structs.replace(record.info, attempt=2, step=6))
    again = WorkerStarted(at=1.0, rank=0, size=1, host="h", pid=1, threads=1, device="cpu", attempt=2)
    append(worker_file(record.dir, 0), [again, *(step(n) for n in range(6, 12))])
    state.read(5.0)
    assert state.records() == read_workers(record)
    assert state.records()[0].steps == 12


def test_what_is_no_number_is_told(tmp_path: Path) -> None:
    record = make_run(tmp_path, [started(), logged(3, loss=float("nan")), logged(4, loss=float("nan"))])
    assert read_all(record.dir).broken == {"loss": 3}


def test_layers_and_their_gradients_are_kept(tmp_path: Path) -> None:
    joined = ModelsJoined(at=1.0, join=0, models=["Net"], optimizers=[], parameters=6, layers={"a": ("Linear", 6)})
    times = LayerTimes(at=1.0, step=1, samples=1, backward={"a": 0.1}, aggregation={"a": 0.2}, gradient={"a": 3.0})
    found = read_all(make_run(tmp_path, [started(), joined, times]).dir).records()[0]
    assert (found.layers, found.gradient_by_layer, found.models) == ({"a": ("Linear", 6)}, {"a": 3.0}, ["Net"])


def test_the_last_minutes_of_fast_steps_are_merged() -> None:
    recent = RecentSteps()
    fast = [_fast(number) for number in range(5000)]
    for each in fast:
        recent.add(each)
    kept = list(recent.since(0.0))
    assert len(kept) < 5000 / 100 + SINGLE
    assert sum(each.steps for each in kept) == 5000
    assert kept[-1] == fast[-1]
    sums = recent.sums(105.0)
    assert sums is not None
    assert sums.steps == pytest.approx(2500, abs=500), "whole seconds"
    assert sums["exchange_wait"] == pytest.approx(0.001 * sums.steps)
    assert (sums.step, recent.sums(200.0)) == (4999, None)


def _fast(number: int) -> StepFinished:
    return msgspec.structs.replace(step(number, seconds=0.002, wait=0.001), at=100.0 + 0.002 * number)
