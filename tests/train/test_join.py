"""What `join` takes, gives back, and refuses."""

import pytest
import torch
from loops import adamw, assert_equal, batches, data, loader, loss_of, parameters, sgd, train
from models import MLP, make
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from shoal.core.errors import LayoutError, UsageError
from shoal.data.loader import ShardedLoader
from shoal.testing.world import Result, WorkerWorld, run_world


def test_gives_back_the_same_things_in_order() -> None:
    def body(world: WorkerWorld) -> None:
        run, model = world.start(), make()
        keys, optimizer = list(model.state_dict()), adamw(model)
        steps, again, same = run.join(loader(2), optimizer, model)
        assert same is model
        assert again is optimizer
        assert isinstance(steps, ShardedLoader)
        assert list(model.state_dict()) == keys
        assert isinstance(again, Optimizer)
        optimizer.load_state_dict(optimizer.state_dict())
        torch.optim.lr_scheduler.StepLR(again, 1)
        assert len(optimizer.param_groups) == 1
        assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)

    run_world(2, body)


def test_pairs_and_single_things() -> None:
    def body(world: WorkerWorld) -> None:
        run, model = world.start(), make()
        optimizer = sgd(model)
        assert run.join(model, optimizer) == (model, optimizer)
        assert run.join(model) is model
        assert isinstance(run.join(loader(1)), ShardedLoader)

    run_world(1, body)


@pytest.mark.parametrize("nonsense", [3, None, "abc", {"a": 1}, torch.ones(2), torch.nn.functional.relu])
def test_nonsense_is_refused(nonsense: object) -> None:
    def body(world: WorkerWorld) -> None:
        run = world.start()
        with pytest.raises(UsageError, match=r"join\(\) got a .*; give it modules"):
            run.join(make(), nonsense)
        with pytest.raises(UsageError, match="nothing"):
            run.join()
        with pytest.raises(UsageError, match="lazy"):
            run.join(nn.LazyLinear(3))

    run_world(1, body)


def test_everybody_begins_with_the_weights_and_state_of_worker_0() -> None:
    def make_mine(rank: int) -> tuple[nn.Module, Optimizer]:
        model = make(seed=rank)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 + rank)
        for x, y in batches(data(), rank)[: rank + 1]:
            loss_of(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, optimizer

    def body(world: WorkerWorld) -> Result:
        run = world.start()
        model, optimizer = run.join(*make_mine(run.rank))
        state = optimizer.state_dict()
        assert state["param_groups"][0]["lr"] == 0.1
        return parameters(model) | {f"{i}{k}": t for i, s in state["state"].items() for k, t in s.items()}

    model, optimizer = make_mine(0)
    for result in run_world(3, body):
        assert_equal(result, model, 0.0)
        for i, state in optimizer.state_dict()["state"].items():
            assert all(torch.equal(result[f"{i}{key}"], tensor) for key, tensor in state.items())


class Wide(MLP):
    def __init__(self) -> None:
        super().__init__()
        self.layers[2] = nn.Linear(8, 8, bias=False)


class Masked(MLP):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(70))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda m: m.double(), r"layers.0.weight: \[8, 6\] torch.float64"),
        (lambda m: Wide(), "layers.4.weight"),
        (lambda m: m.requires_grad_(False), "layers.0.weight.* frozen"),
        (lambda m: Masked(), "buffer mask"),
        (lambda m: nn.Sequential(m, nn.Linear(3, 3)), "0.layers.0.weight"),
    ],
)
def test_different_models_are_refused_by_name(change, named: str) -> None:  # type: ignore[no-untyped-def]
    def body(world: WorkerWorld) -> None:
        run, model = world.start(), make()
        model = change(model) if run.rank == 1 else model
        with pytest.raises(LayoutError, match=rf"worker 1 holds .*{named}|where worker 0 holds .*{named}"):
            run.join(model, SGD(model.parameters(), lr=0.1))

    run_world(2, body)


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x))


def play(judge: nn.Module, forger: nn.Module, optimizers: list[Optimizer], epochs) -> None:  # type: ignore[no-untyped-def]
    """A round for the judge on detached forgeries, then one for the forger through the judge."""
    for epoch in epochs:
        for x, y in epoch:
            forged = forger(y)
            optimizers[0].zero_grad()
            judge(x).square().mean().backward()
            (judge(forged.detach()) - 1).square().mean().backward()
            optimizers[0].step()
            optimizers[1].zero_grad()
            judge(forged).square().mean().backward()
            optimizers[1].step()


@pytest.mark.parametrize("separately", [False, True])
@pytest.mark.parametrize(("size", "samples"), [(2, 37), (4, 33)])
def test_two_models_that_play_against_each_other(size: int, samples: int, separately: bool) -> None:
    def body(world: WorkerWorld) -> Result:
        run, judge, forger = world.start(), make(), make(Generator)
        optimizers: list[Optimizer] = [sgd(judge), adamw(forger)]
        if separately:
            run.join(forger, optimizers[1])
            run.join(judge, optimizers[0])
            steps = run.join(loader(size, data(samples)))
        else:
            *_, steps = run.join(judge, forger, *optimizers, loader(size, data(samples)))
        play(judge, forger, optimizers, (steps for _ in run.epochs(2)))
        return parameters(judge) | parameters(forger, "forger")

    judge, forger = make(), make(Generator)
    play(judge, forger, [sgd(judge), adamw(forger)], [batches(data(samples), epoch) for epoch in range(2)])
    for result in run_world(size, body):
        assert_equal(result, judge)
        assert_equal(result, forger, prefix="forger")


def test_things_joined_one_after_the_other() -> None:
    def body(world: WorkerWorld) -> Result:
        run = world.start()
        model = run.join(make(seed=run.rank + 3))
        optimizer = run.join(sgd(model))
        steps = run.join(loader(4, data(33)))
        assert run.join(model) is model
        train(model, optimizer, (steps for _ in run.epochs(2)))
        return parameters(model)

    model = make()
    train(model, sgd(model), [batches(data(33), epoch) for epoch in range(2)])
    for result in run_world(4, body):
        assert_equal(result, model)


def test_parameters_only_the_optimizer_knows() -> None:
    """A learned temperature beside the model."""

    def script(model: nn.Module, scale: Tensor, optimizer: Optimizer, epochs) -> None:  # type: ignore[no-untyped-def]
        for epoch in epochs:
            for x, y in epoch:
                (model(x) * scale - y).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

    def things(start: float) -> tuple[nn.Module, Tensor, Optimizer]:
        model, scale = make(), nn.Parameter(torch.tensor(start))
        return model, scale, SGD([{"params": model.parameters()}, {"params": [scale], "lr": 0.01}], lr=0.05)

    def body(world: WorkerWorld) -> Result:
        run = world.start()
        model, scale, optimizer = things(1.0 + run.rank)
        model, optimizer, steps = run.join(model, optimizer, loader(2))
        script(model, scale, optimizer, (steps for _ in run.epochs(1)))
        return parameters(model) | {"scale": scale.detach()}

    model, scale, optimizer = things(1.0)
    script(model, scale, optimizer, [batches(data(), 0)])
    for result in run_world(2, body):
        assert_equal(result, model)
        torch.testing.assert_close(result["scale"], scale.detach(), atol=1e-6, rtol=0)
