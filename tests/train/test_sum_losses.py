"""Losses that are sums over samples: `join(loss="sum")` adds gradients up, and several workers equal one process."""

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from changing import changing
from loops import assert_equal, batches, data, loader, loss_of, parameters
from models import make
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from shoal.core.errors import UsageError
from shoal.core.events import ModelsJoined
from shoal.launch.context import WorkerContext
from shoal.membership.session import member_name
from shoal.plan.plan import Plan
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.run import Run
from shoal.watch.tail import JournalTail


class Bag(nn.Module):
    """A sparse embedding under a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.table((x.abs() * 2).long().clamp(max=8)).mean(1))


def sum_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().sum()


def sgd(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.002)


def train(model: nn.Module, optimizer: Optimizer, epochs: Iterable[Any], passes: int = 1) -> None:
    for epoch in epochs:
        for x, y in epoch:
            for _ in range(passes):
                sum_of(model, x, y).backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("samples", [37, 33], ids=["uneven", "some-without"])
@pytest.mark.parametrize("kind", ["mlp", Bag])
@pytest.mark.parametrize(("size", "passes"), [(2, 2), (3, 1)])
def test_equals_one_process(size: int, passes: int, kind: Any, samples: int) -> None:
    """With batches of 8, or of 9 on three workers, 33 and 37 samples leave a remainder that is not even."""
    whole = size * (8 // size + (size == 3))

    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make(kind)
        steps = torch.utils.data.DataLoader(data(samples), batch_size=whole // size, shuffle=True)
        model, optimizer, steps = run.join(model, sgd(model), steps, loss="sum")
        train(model, optimizer, (steps for _ in run.epochs(2)), passes)
        return parameters(model)

    model = make(kind)
    train(model, sgd(model), [batches(data(samples), epoch, whole=whole) for epoch in range(2)], passes)
    for result in run_world(size, body):
        assert_equal(result, model)


def test_without_a_loader_and_with_gradients_held_back() -> None:
    """Two joins with different losses, each of which a pass reaches."""

    def steps(run: Any, first: nn.Module, second: nn.Module, rows: list[Tensor]) -> None:
        with run.accumulate():
            sum_of(first, *[t[:2] for t in rows]).backward()
        sum_of(first, *[t[2:] for t in rows]).backward()
        loss_of(second, *rows).backward()

    def body(world: WorkerWorld) -> Result:
        run, first, second = world.start(), make(), make("cnn")
        run.join(first, sgd(first), loss="sum")
        run.join(second, sgd(second))
        steps(run, first, second, [t[4 * run.rank : 4 * run.rank + 4] for t in data()[:8]])
        named = {"0": first, "1": second}
        return {f"{i}.{n}": p.grad.clone() for i, model in named.items() for n, p in model.named_parameters()}

    first, second = make(), make("cnn")
    sum_of(first, *data()[:8]).backward()
    loss_of(second, *data()[:8]).backward()
    for result in run_world(2, body):
        for i, model in (("0", first), ("1", second)):
            for name, parameter in model.named_parameters():
                torch.testing.assert_close(result[f"{i}.{name}"], parameter.grad)


@pytest.mark.parametrize("plan", ["topk(0.5)"])
def test_codecs_carry_the_mean_and_the_sum_comes_out(plan: str) -> None:
    def body(world: WorkerWorld) -> Result:
        found = {}
        for loss in ("mean", "sum"):
            run, model = world.start(plan, name=loss), make()
            model, _, steps = run.join(model, sgd(model), loader(2, data(32)), loss=loss)
            sum_of(model, *next(iter(steps))).backward()
            found |= {f"{loss} {n}": p.grad.clone() for n, p in model.named_parameters()}
            run.close()
        return found

    for result in run_world(2, body):
        for name, _ in make().named_parameters():
            torch.testing.assert_close(result[f"sum {name}"], 2 * result[f"mean {name}"], rtol=2e-3, atol=1e-5)


def test_the_record_tells_and_what_is_neither_is_refused() -> None:
    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make()
        with pytest.raises(UsageError, match="join\\(loss='max'\\): use 'mean' or 'sum'"):
            run.join(model, loss="max")
        run.join(model, sgd(model), loss="sum")
        run.join(make(), loss="mean")
        run.close()
        told = [event for event in JournalTail(run.dir / "worker-0.jsonl").read() if isinstance(event, ModelsJoined)]
        assert [(event.join, event.loss) for event in told] == [(0, "sum"), (1, "mean")]
        assert (told[0].models, told[0].optimizers) == (["MLP"], ["SGD"])
        return {}

    run_world(1, body)


def test_workers_that_differ_are_named() -> None:
    def body(world: WorkerWorld) -> None:
        run = world.start()
        with pytest.raises(Exception, match="loss 'sum'"):
            run.join(model := make(), sgd(model), loss="sum" if run.rank else "mean")

    run_world(2, body)


@pytest.mark.parametrize("counted", [True, False], ids=["weighed", "by-themselves"])
@pytest.mark.parametrize("loss", ["mean", "sum"])
def test_after_a_loss_gradients_are_those_of_the_workers_that_are_left(loss: str, counted: bool) -> None:
    """Without a joined loader too: nobody else says how many workers there are."""

    def body(world: WorkerWorld) -> Result:
        group, session = changing(world, links=False)
        run, model = Run(WorkerContext(group, "run", world.dir / "run", "", 0, begun=False), Plan()), make()
        model, _ = run.join(model, sgd(model), loss=loss)
        if counted:
            run.weight(2)
        rows = [t[2 * run.rank : 2 * run.rank + 2] for t in data()[:6]]
        for survivors in (3, 2, 2):
            if run.rank >= survivors:
                return {}
            if len(session.view) != survivors:
                session.change([member_name(slot) for slot in range(survivors)])
            model.zero_grad()
            (sum_of if loss == "sum" else loss_of)(model, *rows).backward()
        return {name: p.grad.clone() for name, p in model.named_parameters()}

    model = make()
    (sum_of if loss == "sum" else loss_of)(model, *data()[:4]).backward()
    for result in run_world(3, body)[:2]:
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(result[name], parameter.grad)
