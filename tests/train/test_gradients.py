"""What `p.grad` holds, and when."""

import itertools
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from loops import SAMPLES, assert_equal, batches, data, loader, loss_of, parameters, sgd
from models import make
from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.core.errors import UsageError
from shoal.testing.world import Result, WorkerWorld, run_world


def gradients(model: nn.Module) -> Result:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def part(rank: int, number: int = 4) -> tuple[Tensor, Tensor]:
    """A batch of worker `rank`."""
    x, y = data(64)[8 * rank : 8 * rank + number]
    return x, y


def mean(shares: list[tuple[float, Tensor, Tensor]]) -> Result:
    """The weighted mean of gradients, by hand."""
    model = make()
    for share, x, y in shares:
        (share * loss_of(model, x, y)).backward()
    return gradients(model)


def assert_gradients(results: list[Result], expected: Result) -> None:
    for result in results:
        assert result.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(result[name], gradient, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("size", [2, 3])
def test_after_backward_it_is_the_mean(size: int) -> None:
    def body(world: WorkerWorld) -> Result:
        run = world.start()
        model = run.join(make())
        loss_of(model, *part(run.rank)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        return gradients(model)

    expected = mean([(1 / size, *part(rank)) for rank in range(size)])
    norm = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
    assert_gradients(run_world(size, body), {name: 0.1 / (norm + 1e-6) * g for name, g in expected.items()})


def test_several_passes_add_up() -> None:
    def body(world: WorkerWorld) -> Result:
        run = world.start()
        model = run.join(make())
        for number in range(3):
            loss_of(model, *part(run.rank + 2 * number)).backward()
        return gradients(model)

    assert_gradients(run_world(2, body), mean([(1 / 2, *part(rank)) for rank in range(6)]))


def test_accumulate_exchanges_once() -> None:
    def body(world: WorkerWorld) -> Result:
        run = world.start()
        model, optimizer = run.join(model := make(), sgd(model))
        with run.accumulate():
            for number in range(2):
                loss_of(model, *part(run.rank + 2 * number)).backward()
            own = gradients(model)
            with pytest.raises(UsageError, match="inside run"):
                optimizer.step()
        assert own.keys() == gradients(model).keys()
        loss_of(model, *part(run.rank + 4)).backward()
        return gradients(model) | {f"own {name}": gradient for name, gradient in own.items()}

    results = run_world(2, body)
    for rank, result in enumerate(results):
        own = {name[4:]: result.pop(name) for name in list(result) if name.startswith("own ")}
        assert_gradients([own], mean([(1.0, *part(rank)), (1.0, *part(rank + 2))]))
    assert_gradients(results, mean([(1 / 2, *part(rank)) for rank in range(6)]))


def test_step_inside_accumulate_is_refused_in_a_world_of_one_too() -> None:
    def body(world: WorkerWorld) -> None:
        run = world.start()
        model, optimizer = run.join(model := make(), sgd(model))
        with run.accumulate(), pytest.raises(UsageError, match="step after it"):
            optimizer.step()

    run_world(1, body)


@pytest.mark.parametrize("counts", [(1, 7), (4, 4), (2, 5, 8), (0, 3)])
def test_weight_counts_samples(counts: tuple[int, ...]) -> None:
    def body(world: WorkerWorld) -> Result:
        run = world.start()
        model = run.join(make())
        run.weight(counts[run.rank])
        loss_of(model, *part(run.rank, counts[run.rank] or 1)).backward()
        return gradients(model)

    shares = [(count / sum(counts), *part(rank, count)) for rank, count in enumerate(counts) if count]
    assert_gradients(run_world(len(counts), body), mean(shares))


def test_weight_refuses_less_than_nothing() -> None:
    def body(world: WorkerWorld) -> None:
        with pytest.raises(UsageError, match=r"weight\(-1\)"):
            world.start().weight(-1)

    run_world(1, body)


SEVERAL = list(itertools.product((2, 5), (False, True), (33, SAMPLES)))
"""Batches in a step, whether their gradients are held back, samples of an epoch."""


def test_steps_over_several_batches() -> None:
    """Gradients travel into the step in which some have no sample, out of it, and into the next epoch.

    One world, and in it one run after the other.
    """

    def script(
        every: int, model: nn.Module, optimizer: Optimizer, epochs: Iterable[Any], quiet: Any = nullcontext
    ) -> None:
        for epoch in epochs:
            for number, (x, y) in enumerate(epoch):
                last = number % every == every - 1
                with nullcontext() if last else quiet():
                    loss_of(model, x, y).backward()
                if last:
                    optimizer.step()
                    optimizer.zero_grad()

    def body(world: WorkerWorld) -> Result:
        found: Result = {}
        for number, (every, held, samples) in enumerate(SEVERAL):
            run, model = world.start(name=f"run{number}"), make()
            model, optimizer, steps = run.join(model, sgd(model), loader(4, data(samples)))
            script(every, model, optimizer, (steps for _ in run.epochs(3)), run.accumulate if held else nullcontext)
            found |= parameters(model, f"{number}-")
        return found

    results = run_world(4, body)
    for number, (every, _, samples) in enumerate(SEVERAL):
        model = make()
        script(every, model, sgd(model), [batches(data(samples), epoch) for epoch in range(3)])
        for result in results:
            assert_equal(result, model, prefix=f"{number}-")


def test_a_step_after_the_loop_uses_what_is_left() -> None:
    """Also on the workers that had no sample in the last step."""

    def script(model: nn.Module, optimizer: Optimizer, epochs: Iterable[Any]) -> None:
        for epoch in epochs:
            for x, y in epoch:
                loss_of(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()

    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make()
        model, optimizer, steps = run.join(model, sgd(model), loader(4, data(33)))
        script(model, optimizer, (steps for _ in run.epochs(2)))
        return parameters(model)

    model = make()
    script(model, sgd(model), [batches(data(33), epoch) for epoch in range(2)])
    for result in run_world(4, body):
        assert_equal(result, model)


@pytest.mark.parametrize("quiet", [False, True], ids=["exchanged", "held"])
def test_several_passes_in_a_step_some_have_no_sample_for(quiet: bool) -> None:
    def script(model: nn.Module, optimizer: Optimizer, epochs: Iterable[Any], accumulate: Any = nullcontext) -> None:
        for epoch in epochs:
            for x, y in epoch:
                optimizer.zero_grad()
                with accumulate():
                    loss_of(model, x, y).backward()
                model(x).square().mean().backward()
                optimizer.step()

    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make()
        model, optimizer, steps = run.join(model, sgd(model), loader(4, data(33)))
        script(model, optimizer, (steps for _ in run.epochs(2)), run.accumulate if quiet else nullcontext)
        return parameters(model)

    model = make()
    script(model, sgd(model), [batches(data(33), epoch) for epoch in range(2)])
    for result in run_world(4, body):
        assert_equal(result, model)
