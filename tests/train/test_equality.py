"""Synchronous training on p workers equals one process with the whole batch."""

import itertools
from functools import cache

import pytest
import torch
from loops import adamw, assert_equal, batches, data, loader, parameters, sgd, train
from models import MODELS, make
from torch import nn

from shoal.testing.world import Result, WorkerWorld, run_world

OPTIMIZERS = {"sgd": sgd, "adamw": adamw}
EVERY = list(itertools.product(MODELS, OPTIMIZERS))
SOME = EVERY[::3] + EVERY[5::9]
"""Each model and each optimizer, but not every pair."""
EPOCHS = 4  # of 5 steps


@cache
def expected(kind: str, how: str, dtype: torch.dtype) -> nn.Module:
    model = make(kind, dtype)
    train(model, OPTIMIZERS[how](model), [batches(data(dtype=dtype), epoch) for epoch in range(EPOCHS)])
    return model


@pytest.mark.parametrize(
    ("size", "dtype", "pairs"),
    [
        (1, torch.float64, EVERY[::6]),
        (2, torch.float32, EVERY[1::3]),
        (2, torch.float64, EVERY),
        (4, torch.float64, SOME),
    ],
    ids=["1-float64", "2-float32", "2-float64", "4-float64"],
)
def test_twenty_steps_equal_one_process(size: int, dtype: torch.dtype, pairs: list[tuple[str, str]]) -> None:
    """Models under optimizers: runs of one world, one after the other."""
    bound = 1e-6 if dtype is torch.float32 else 1e-12

    def body(world: WorkerWorld) -> Result:
        result = {}
        for kind, how in pairs:
            run = world.start(name=f"{kind}-{how}")
            model = make(kind, dtype)
            model, optimizer, steps = run.join(model, OPTIMIZERS[how](model), loader(size, data(dtype=dtype)))
            train(model, optimizer, (steps for _ in run.epochs(EPOCHS)))
            result |= parameters(model, f"{kind}-{how}-")
        return result

    for result in run_world(size, body):
        for kind, how in pairs:
            assert_equal(result, expected(kind, how, dtype), bound, f"{kind}-{how}-")


def one_cycle(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.OneCycleLR:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)


def stepwise(optimizer: torch.optim.Optimizer, _steps: int) -> torch.optim.lr_scheduler.StepLR:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.7)


@pytest.mark.parametrize(
    ("samples", "early"),
    [(33, False), (33, True), (35, True), (3, False)],
    ids=["33-after-join", "33-before-join", "35-before-join", "3-after-join"],
)
def test_remainders_with_clipping_and_a_scheduler(samples: int, early: bool) -> None:
    """33: one worker alone has the last sample of an epoch; 3: one worker never has any. `early`: made before join."""
    dataset, size = data(samples), 4
    schedule = stepwise if early else one_cycle

    def script(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler, epochs) -> Result:  # type: ignore[no-untyped-def]
        for epoch in epochs:
            for x, y in epoch:
                (model(x) - y).square().mean().backward()
                norm = nn.utils.clip_grad_norm_(model.parameters(), 0.3)
                assert norm > 0.3, "the test is about clipping"
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        return parameters(model) | {"rate": torch.tensor(optimizer.param_groups[0]["lr"], dtype=torch.float64)}

    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make()
        optimizer = sgd(model)
        before = stepwise(optimizer, 0) if early else None
        model, optimizer, steps = run.join(model, optimizer, loader(size, dataset))
        scheduler = before or one_cycle(optimizer, 3 * len(steps))
        return script(model, optimizer, scheduler, (steps for _ in run.epochs(3)))

    model = make()
    optimizer = sgd(model)
    whole = [batches(dataset, epoch) for epoch in range(3)]
    alone = script(model, optimizer, schedule(optimizer, 3 * len(whole[0])), whole)
    for result in run_world(size, body):
        assert_equal(result, model)
        assert result["rate"] == alone["rate"]


def test_adaptive_scheduler_of_an_epoch() -> None:
    """ReduceLROnPlateau keeps an infinity and is stepped by every worker itself, after the pass."""

    def script(model: nn.Module, epochs, optimizer: torch.optim.Optimizer) -> None:  # type: ignore[no-untyped-def]
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        for number, epoch in enumerate(epochs):
            train(model, optimizer, [epoch])
            scheduler.step(1.0 + number)

    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make()
        model, optimizer, steps = run.join(model, sgd(model), loader(4, data(33)))
        script(model, (steps for _ in run.epochs(3)), optimizer)
        return parameters(model)

    model = make()
    script(model, [batches(data(33), epoch) for epoch in range(3)], sgd(model))
    for result in run_world(4, body):
        assert_equal(result, model)
