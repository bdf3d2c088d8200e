"""How replicas agree, as the page tells it: rounds, drift, staleness, switches."""

from pathlib import Path

import msgspec
from fake_runs import ended, make_run, started, step

from shoal.core.events import GuardChecked, PlanSwitched, RoundsMade, RunEvent
from shoal.watch.page.agreement import agreement
from shoal.watch.page.run_state import RunState


def told(root: Path, *workers: list[RunEvent]) -> dict:
    state = RunState(make_run(root, *workers).dir)
    while not state.caught_up:
        state.read()
    return msgspec.to_builtins(agreement(state), str_keys=True)


def steps(rank: int, seconds: list[float]) -> list[RunEvent]:
    """A worker that ends its steps at these moments."""
    made = [msgspec.structs.replace(step(n), at=at) for n, at in enumerate(seconds)]
    return [started(rank), *made, ended()]


def test_a_plain_run_has_nothing_but_staleness(tmp_path: Path) -> None:
    found = told(tmp_path, steps(0, [100.0, 101.0]), steps(1, [100.0, 101.0]))
    assert not any(found[name] for name in ("rounds", "drift", "shares", "switches"))
    assert set(found["staleness"]["workers"]) == {"0", "1"}


def test_staleness_is_how_many_steps_a_worker_is_behind(tmp_path: Path) -> None:
    found = told(tmp_path, steps(0, [70.0, 80.0, 90.0, 100.0]), steps(1, [70.0, 100.0]))["staleness"]
    at = dict(zip(found["seconds"], found["workers"]["1"], strict=True))
    assert at[-60.0] is None  # nothing was made yet
    assert (at[-29.0], at[-15.0], at[-5.0]) == (0, 1, 2)
    assert set(found["workers"]["0"]) == {None, 0}


def test_rounds_are_told_by_worker(tmp_path: Path) -> None:
    made = RoundsMade(at=100.0, step=40, rounds=4, steps=40, seconds=2.0, sent=1000, wire=1100, dropped=1)
    (found,) = told(tmp_path, [started(0), step(0), made, ended()])["rounds"]
    assert (found["steps_a_round"], found["seconds_a_round"], found["dropped"]) == (10.0, 0.5, 1)


def test_drift_is_what_the_guard_found(tmp_path: Path) -> None:
    checks = [
        GuardChecked(at=100.0 + n, step=n, cosine=cosine, budget=0.9, steps=10, action="kept")
        for n, cosine in enumerate((0.99, 0.5))
    ]
    found = told(tmp_path, [started(0), step(0), *checks, ended()])["drift"]
    assert [(row["step"], row["cosine"], row["budget"]) for row in found] == [(0, 0.99, 0.9), (1, 0.5, 0.9)]


def test_a_switch_of_all_workers_is_told_once(tmp_path: Path) -> None:
    switch = PlanSwitched(at=100.0, step=7, number=1, plan="allreduce, every(1), int8", before="allreduce, every(1)")
    both = [[started(rank), step(0), switch, ended()] for rank in (0, 1)]
    (found,) = told(tmp_path, *both)["switches"]
    assert (found["step"], found["plan"]) == (7, "allreduce, every(1), int8")
