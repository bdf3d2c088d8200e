"""Scheduled model parallelism: STRADS (row 76), and with bounded staleness and recovery Petuum (row 195)."""

import re
import sys
from pathlib import Path
from statistics import median

import forked
import pytest
import torch

from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.block_schedule import BlockSchedule

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples"))

from lasso import LassoModel, make_step  # noqa: E402

THRESHOLD, WIDTH = 0.4, 8
WORDS = ("--variables", "200", "--steps", "200", "--penalty", "0.2")
KILLED = f"""
import os, sys
sys.path.insert(0, {str(ROOT / "examples")!r})
import lasso

make_step = lasso.make_step

def make_step_or_die(run, *rest):
    if run.worker_id == 1 and run.step == 9 and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), 9)
    return make_step(run, *rest)

lasso.make_step = make_step_or_die
lasso.main()
"""


def model_of(variables: int = 500) -> LassoModel:
    return LassoModel(300, variables, correlation=0.7, penalty=0.1)


def descend(model: LassoModel, schedule: BlockSchedule, steps: int, goal: float = 0.0) -> tuple[int, list[float]]:
    """One worker alone; returns how many updates it made, and the objective after every step."""
    state, updates, seen = schedule.first_state(), 0, [model.objective()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule.watch(optimizer, model.gradients)
    for _ in range(steps):
        drawn = schedule.draw(state)
        schedule.share(drawn, 0, 1)
        changes = torch.zeros_like(model.weights, requires_grad=False)
        changes[drawn] = model.changes(drawn)
        model.weights.grad = -changes
        optimizer.step()
        state, updates = schedule.advance(state, drawn, changes), updates + len(drawn)
        seen.append(model.objective())
        if seen[-1] <= goal:
            break
    return updates, seen


def updates_to(goal: float, order: str, steps: int = 2000, seed: int = 0) -> tuple[int, float]:
    """Return how many updates the order needs for this objective, and the objective it comes to."""
    model = model_of()
    schedule = BlockSchedule(500, WIDTH, dependence=model.correlations, threshold=THRESHOLD, order=order, seed=seed)
    updates, seen = descend(model, schedule, steps, goal)
    return updates, seen[-1]


def test_strads_priority_needs_at_most_half_of_the_updates_of_round_robin() -> None:
    _, least = updates_to(0.0, "turn", steps=700)
    in_turn, objective = updates_to(1.001 * least, "turn")
    assert objective <= 1.001 * least
    found = [updates_to(1.001 * least, "priority", seed=seed) for seed in range(5)]
    assert max(objective for _, objective in found) <= 1.001 * least
    assert median(updates for updates, _ in found) <= 0.5 * in_turn, (found, in_turn)


def test_strads_dependent_variables_that_are_updated_together_overshoot() -> None:
    """Why there is a threshold: without one the objective grows beyond all bounds, with it it only falls."""
    seen = {}
    for threshold in (1.0, THRESHOLD):
        model = LassoModel(300, 60, correlation=0.95, penalty=0.1)
        schedule = BlockSchedule(60, 60, dependence=model.correlations, threshold=threshold, order="turn")
        seen[threshold] = descend(model, schedule, 20)[1]
    together, apart = seen[1.0], seen[THRESHOLD]
    assert together[-1] > 10 * together[0]
    assert apart[-1] < 0.5 * apart[0]
    assert apart == sorted(apart, reverse=True)


def descend_together(size: int, plan: str = "allreduce", delay: int = 0, steps: int = 40) -> list[Result]:
    def body(world: WorkerWorld) -> Result:
        run, model = world.start(plan), model_of(200)
        schedule = BlockSchedule(200, WIDTH, dependence=model.correlations, threshold=THRESHOLD, delay=delay)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model, schedule, optimizer = run.join(model, schedule, optimizer, loss="sum")
        schedule.watch(optimizer, model.gradients)
        state = run.state(step=0, schedule=schedule.first_state())
        drawn, arrived = [], []
        while state.step < steps:
            drawn.append(schedule.draw(state.schedule))
            state.schedule = make_step(run, model, schedule, state.schedule, optimizer.step)
            arrived.append((state.schedule["updated"] == state.step).nonzero().flatten().tolist())
            state.step += 1
        late = all(sorted(then) == now for then, now in zip(drawn, arrived[delay:], strict=False))
        return {"weights": model.weights.detach(), "late": torch.tensor(late and not any(arrived[:delay]))}

    return run_world(size, body)


def test_strads_any_number_of_workers_comes_to_the_same_weights() -> None:
    alone = descend_together(1)[0]
    for size in (2, 4):
        for result in descend_together(size):
            torch.testing.assert_close(result["weights"], alone["weights"], rtol=0, atol=1e-12)


def test_petuum_changes_arrive_as_many_steps_late_as_the_bound_says() -> None:
    """Under `stale(2)` a step's changes are in the weights two steps later, on all workers alike."""
    results = descend_together(2, "allreduce, stale(2)", delay=2)
    assert all(bool(result["late"]) for result in results)
    assert torch.equal(results[0]["weights"], results[1]["weights"])


def ends_at(folder: Path, *words: str, script: Path = ROOT / "examples/lasso.py", delay: int = 0) -> float:
    folder.mkdir()
    plan = ("--plan", f"allreduce, stale({delay})") if delay else ()
    more = (*WORDS, "--delay", str(delay))
    done = forked.command(folder, "run", *words, *plan, str(script), *more).wait(110)
    assert done.code == 0, done.err
    if script.name == "killed.py":
        assert "worker 1 was lost (SIGKILL) in step 9" in done.err
    return float(re.findall(r"objective (\S+) after 200 steps", done.out)[0])


@pytest.mark.parametrize("delay", [0, 1], ids=["strads", "petuum, stale by one step"])
def test_a_run_whose_worker_is_killed_comes_to_the_same_objective(tmp_path: Path, delay: int) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    whole = ends_at(tmp_path / "whole", "--workers", "1")
    killed = ends_at(tmp_path / "killed", "--workers", "2", script=tmp_path / "killed.py", delay=delay)
    assert killed == pytest.approx(whole, rel=1e-6)
