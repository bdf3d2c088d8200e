"""`allreduce, stale(k)`: equal to one process whose gradients come k steps late; pending means outlive a resume."""

from collections import deque
from collections.abc import Callable

import pytest
import torch
from loops import WHOLE, adamw, assert_equal, batches, data, loader, loss_of, parameters, sgd
from models import make
from test_works_with import Paths
from torch import nn
from torch.optim import Optimizer

from shoal.core.errors import UsageError
from shoal.plan.plan import Plan
from shoal.plan.rules import check
from shoal.testing.world import Result, WorkerWorld, WorldError, run_world

EPOCHS = 2


def train_delayed(model: nn.Module, optimizer: Optimizer, delay: int, samples: int, kind: str = "mean") -> None:
    """One process: each gradient is of the parameters of its own step, and applied `delay` steps later."""
    for epoch in range(EPOCHS):
        late: deque[list[torch.Tensor | None]] = deque()
        for x, y in batches(data(samples), epoch):
            optimizer.zero_grad()
            loss = loss_of(model, x, y) if kind == "mean" else (model(x) - y).square().sum()
            loss.backward()
            late.append([p.grad for p in model.parameters()])
            if len(late) > delay:
                apply(model, optimizer, late.popleft())
        while late:  # a pass ends
            apply(model, optimizer, late.popleft())


def apply(model: nn.Module, optimizer: Optimizer, gradients: list[torch.Tensor | None]) -> None:
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()


@pytest.mark.parametrize(
    ("delay", "size", "samples", "kind", "optimizer_of"),
    [
        (1, 2, 37, "mlp", sgd),
        (3, 2, 37, "lstm", adamw),
        (2, 4, 33, "mlp", sgd),
        (1, 2, 32, Paths, adamw),
    ],
    ids=["momentum", "three steps late, adamw", "one has the last sample", "unused parameters"],
)
def test_it_equals_one_process_whose_gradients_come_late(
    delay: int, size: int, samples: int, kind: object, optimizer_of: Callable[[nn.Module], Optimizer]
) -> None:
    def body(world: WorkerWorld) -> Result:
        run, model = world.start(f"allreduce, stale({delay})"), make(kind)
        model, optimizer, steps = run.join(model, optimizer_of(model), loader(size, data(samples)))
        for _ in run.epochs(EPOCHS):
            for x, y in steps:
                loss_of(model, x, y).backward()
                optimizer.step()
                optimizer.zero_grad()
        return parameters(model)

    model = make(kind)
    train_delayed(model, optimizer_of(model), delay, samples)
    for result in run_world(size, body):
        assert_equal(result, model)


def test_replicas_are_equal_after_every_step_and_the_first_apply_nothing() -> None:
    def body(world: WorkerWorld) -> Result:
        run, model = world.start("allreduce, stale(2)"), make("mlp")
        before = torch.cat([p.detach().flatten() for p in model.parameters()]).clone()
        model, optimizer, steps = run.join(model, sgd(model), loader(2, data(8 * WHOLE)))
        seen = []
        for _ in run.epochs(1):
            for x, y in steps:
                loss_of(model, x, y).backward()
                optimizer.step()
                seen.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
                optimizer.zero_grad()
        assert torch.equal(seen[0], before)
        assert torch.equal(seen[1], before)
        assert not torch.equal(seen[2], before)
        return {"seen": torch.stack(seen)}

    first, second = run_world(2, body)
    assert torch.equal(first["seen"], second["seen"])


def test_a_worker_without_samples_keeps_step_with_a_schedule() -> None:
    """33 samples of four workers: the last batch of a pass is worker 0's alone, and so is its `scheduler.step()`."""

    def body(world: WorkerWorld) -> Result:
        run, model = world.start("allreduce, stale(1)"), make("mlp")
        optimizer = sgd(model)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        model, optimizer, steps = run.join(model, optimizer, loader(4, data(33)))
        for _ in run.epochs(3):
            for x, y in steps:
                loss_of(model, x, y).backward()
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        return {**parameters(model), "rate": torch.tensor(scheduler.get_last_lr())}

    first, *rest = run_world(4, body)
    assert float(first["rate"]) == pytest.approx(0.05 / 16)
    for result in rest:
        assert all(torch.equal(result[name], first[name]) for name in first)


def test_sums_add_up() -> None:
    def body(world: WorkerWorld) -> Result:
        run, model = world.start("allreduce, stale(1)"), make("mlp")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
        model, optimizer, steps = run.join(model, optimizer, loader(2, data(37)), loss="sum")
        for _ in run.epochs(EPOCHS):
            for x, y in steps:
                (model(x) - y).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        return parameters(model)

    model = make("mlp")
    train_delayed(model, torch.optim.SGD(model.parameters(), lr=0.002), 1, 37, "sum")
    for result in run_world(2, body):
        assert_equal(result, model)


def test_a_gradient_that_is_not_finite_counts_for_nothing() -> None:
    def body(world: WorkerWorld) -> Result:
        run, model = world.start("allreduce, stale(1)"), make("mlp")
        model, optimizer, steps = run.join(model, sgd(model), loader(2, data(32)))
        for _ in run.epochs(1):
            for number, (x, y) in enumerate(steps):
                loss_of(model, x * float("nan") if run.rank == 1 and number == 1 else x, y).backward()
                optimizer.step()
                optimizer.zero_grad()
        return parameters(model)

    first, second = run_world(2, body)
    assert all(bool(values.isfinite().all()) for values in first.values())
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("left_out", [1, 3], ids=["in the middle", "the last"])
def test_a_batch_that_one_worker_leaves_out_ends_the_run(left_out: int) -> None:
    def body(world: WorkerWorld) -> Result:
        run, model = world.start("allreduce, stale(1)"), make("mlp")
        model, optimizer, steps = run.join(model, sgd(model), loader(2, data(32)))
        for _ in run.epochs(1):
            for number, (x, y) in enumerate(steps):
                if run.rank == 1 and number == left_out:
                    continue
                loss_of(model, x, y).backward()
                optimizer.step()
                optimizer.zero_grad()
        return {}

    with pytest.raises(WorldError, match="made steps of different numbers of batches"):
        run_world(2, body)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ("allreduce, stale(0)", "means that are 0 steps late are every"),
        ("allreduce, stale(2, eager=true)", "only the bound has a meaning"),
        ("allreduce, stale(1), order(needed)", "nothing can be ordered"),
        ("allreduce, async", "is for parameter servers"),
    ],
)
def test_what_does_not_fit_is_refused(plan: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        check(Plan.parse(plan), 2)


def test_several_optimizers_are_refused() -> None:
    def body(world: WorkerWorld) -> Result:
        run, model = world.start("allreduce, stale(1)"), make("mlp")
        run.join(model, [sgd(model), sgd(model)])
        return {}

    with pytest.raises(WorldError, match="delays the steps of one optimizer"):
        run_world(2, body)
