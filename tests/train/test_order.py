"""`order(...)` on real processes: the same parameters as `order(ready)`, over links and in memory."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from by_links import by_files, by_keys
from loops import adamw, data, loader, parameters, sgd, train
from models import make
from test_deferred import Tied
from test_works_with import Paths, Words
from torch import nn

from shoal.core.events import ChoiceMade, StepFinished, StepSkipped, WarningRaised
from shoal.sync.lockstep.auto_order import GAIN
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.joined import JoinedModels
from shoal.watch.tail import JournalTail

EPOCHS = 4  # of 5 steps; the last has a remainder


def same(world: WorkerWorld) -> Any:
    return world.group


def train_by(
    world: WorkerWorld, plan: str, kind: Any, optimizer_of: Callable[[nn.Module], Any], samples: int = 37
) -> Result:
    run, model = world.start(plan, name=plan.translate(str.maketrans("(), =.", "------"))), make(kind)
    model, optimizer, steps = run.join(model, optimizer_of(model), loader(2, data(samples)))
    train(model, optimizer, (steps for _ in run.epochs(EPOCHS)))
    run._journal.flush()  # not closed: the others may still be in it, and another run of this group follows
    return parameters(model)


def events(world: WorkerWorld, plan: str, kind: type) -> list[Any]:
    folder = world.dir / plan.translate(str.maketrans("(), =.", "------"))
    return [
        event for event in JournalTail(folder / f"worker-{world.group.rank}.jsonl").read() if isinstance(event, kind)
    ]


@pytest.mark.parametrize("group_of", [same, by_files], ids=["memory", "links"])
@pytest.mark.parametrize("optimizer_of", [sgd, adamw])
@pytest.mark.parametrize("kind", ["mlp", "transformer", Tied])
def test_needed_is_ready_bit_for_bit(kind: Any, optimizer_of: Any, group_of: Any) -> None:
    def body(world: WorkerWorld) -> Result:
        world = dataclasses.replace(world, group=group_of(world))
        ready, needed = (train_by(world, f"order({by})", kind, optimizer_of) for by in ("ready", "needed"))
        for name, value in ready.items():
            assert torch.equal(needed[name], value), name
        told = [
            event.text for event in events(world, "order(needed)", WarningRaised) if "is as order(ready)" in event.text
        ]
        assert len(told) == (group_of is same), "in memory it says that it is not"
        return needed

    first, second = run_world(2, body)
    assert all(torch.equal(second[name], value) for name, value in first.items())


@pytest.mark.parametrize(
    ("plan", "kind"), [("order(needed)", Paths), ("order(needed)", Words), ("order(needed), onebit", "mlp"),
                       ("order(needed), fp16", "cnn")]
)  # fmt: skip
def test_needed_with_what_is_unused_sparse_or_coded(plan: str, kind: Any) -> None:
    def body(world: WorkerWorld) -> Result:
        world = dataclasses.replace(world, group=by_keys(world))
        optimizer_of = (lambda m: torch.optim.SGD(m.parameters(), lr=0.1)) if kind is Words else sgd
        ready, needed = (train_by(world, p, kind, optimizer_of, 33) for p in (plan.replace("needed", "ready"), plan))
        for name, value in ready.items():
            torch.testing.assert_close(needed[name], value, atol=1e-6, rtol=0)
        return needed

    first, second = run_world(2, body)
    assert all(torch.equal(second[name], value) for name, value in first.items())


@pytest.mark.parametrize("plan", ["order(auto)", pytest.param("order(auto), onebit", marks=pytest.mark.soak)])
def test_auto_is_ready_bit_for_bit_and_all_choose_alike(plan: str) -> None:
    """Twenty steps, some without samples for all; fifteen are needed to choose."""

    def body(world: WorkerWorld) -> Result:
        world = dataclasses.replace(world, group=by_files(world))
        ready, auto = (train_by(world, p, "mlp", sgd) for p in (plan.replace("auto", "ready"), plan))
        for name, value in ready.items():
            torch.testing.assert_close(auto[name], value, atol=1e-6, rtol=0)
        (chosen,) = events(world, plan, ChoiceMade)
        assert set(chosen.steps) == {"order(ready)", "order(needed)"}
        assert f"{1e3 * chosen.steps['order(needed)']:.1f} ms layer by layer" in chosen.reason
        figures = torch.tensor([*chosen.steps.values(), chosen.codec == "order(needed)"])
        return {"figures": figures, **auto}

    first, second = run_world(2, body)
    assert all(torch.equal(second[name], value) for name, value in first.items())
    ready, needed, chosen = first["figures"].tolist()
    assert bool(chosen) == (needed <= GAIN * ready)


def test_steps_overlap_and_the_record_says_how_much() -> None:
    def body(world: WorkerWorld) -> Result:
        world = dataclasses.replace(world, group=by_files(world))
        run, model = world.start("tictac", name="run"), make()
        model, optimizer = run.join(model, sgd(model))
        (joined,) = run._together.joined
        assert isinstance(joined, JoinedModels)
        assert joined.deferred is not None
        open_ = 0
        for _ in range(5):
            model(torch.ones(2, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            open_ += bool(joined.deferred._updates)
        run.close()
        assert not joined.deferred._updates
        steps = [
            e for e in JournalTail(world.dir / "run" / f"worker-{run.rank}.jsonl").read() if isinstance(e, StepFinished)
        ]
        assert len(steps) == 5
        assert all(0 <= step.exposed <= step.transfer for step in steps)
        assert any(step.transfer > 0 for step in steps[1:])
        return {"open": torch.tensor(open_), **parameters(model)}

    results = run_world(2, body)
    assert all(int(result["open"]) == 5 for result in results), "every step was open when it returned"
    assert all(torch.equal(results[0][name], value) for name, value in results[1].items())


def test_a_step_that_is_not_finite_is_skipped_by_all() -> None:
    def body(world: WorkerWorld) -> Result:
        world = dataclasses.replace(world, group=by_files(world))
        found = {}
        for by in ("ready", "needed"):
            run, model = world.start(f"order({by})", name=by), make()
            model, optimizer = run.join(model, sgd(model))
            for step in range(4):
                loss = model(torch.full((2, 6), 0.1 * (run.rank + step))).square().mean()
                (loss * float("nan") if step == 2 and run.rank == 1 else loss).backward()
                optimizer.step()
                optimizer.zero_grad()
            found |= parameters(model, by)
            run._journal.flush()  # not closed: the others may still be in it, and another run of this group follows
            if run.rank == 0:
                told = [e for e in JournalTail(world.dir / by / "worker-0.jsonl").read() if isinstance(e, StepSkipped)]
                assert [(skip.step, skip.workers) for skip in told] == [(2, [1])]
        return found

    for result in run_world(2, body):
        for name, value in result.items():
            assert value.isfinite().all()
            assert torch.equal(value, result[name.replace("needed", "ready")])


def test_main_alone_looks_at_the_model_after_each_step() -> None:
    """Nobody waits for a worker that looks: all that it needs has left already."""

    def body(world: WorkerWorld) -> Result:
        world = dataclasses.replace(world, group=by_files(world))
        run, model = world.start("order(needed)"), make()
        model, optimizer = run.join(model, sgd(model))
        for step in range(6):
            model(torch.full((2, 6), float(step - run.rank))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if run.is_main:
                model.state_dict()
                optimizer.state_dict()
            run.weight(2)
        return parameters(model)

    first, second = run_world(2, body)
    assert all(torch.equal(second[name], value) for name, value in first.items())


@pytest.mark.parametrize("group_of", [same, by_files], ids=["memory", "links"])
def test_largest_learns_and_replicas_stay_equal(group_of: Any) -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(6, 300), nn.Tanh(), nn.Linear(300, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

    def body(world: WorkerWorld) -> Result:
        world = dataclasses.replace(world, group=group_of(world))
        plan = "order(largest, budget=4kb)"
        found = train_by(world, plan, Wide, sgd)
        steps = events(world, plan, StepFinished)
        assert all(0 < step.sent <= 4000 < step.raw for step in steps if step.samples)
        return found

    first, second = run_world(2, body)
    assert all(torch.equal(second[name], value) for name, value in first.items())
    untrained = parameters(make(Wide))
    assert any(not torch.equal(first[name], value) for name, value in untrained.items())
