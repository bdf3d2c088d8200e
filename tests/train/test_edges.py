"""Less usual scripts: leaving early, looking twice, evaluating between, failing and going on."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from loops import assert_equal, batches, data, loader, loss_of, parameters, sgd, train
from models import MLP, make
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

from shoal.core.errors import PeerLost
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.checkpoint import coordinator


@pytest.mark.parametrize("often", [False, True], ids=["meeting now and then", "meeting at every step"])
@pytest.mark.parametrize("at", [2, 4])
def test_leaving_the_loop_early(at: int, often: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 4 only one worker has a sample: it leaves, the others have no batch to leave at. They may meet there, too."""
    if often:
        monkeypatch.setattr(coordinator, "steps_between", lambda step, sync: 1)

    def script(model: nn.Module, optimizer: Optimizer, epochs: Iterable[Any]) -> None:
        for epoch in epochs:
            for number, (x, y) in enumerate(epoch):
                loss_of(model, x, y).backward()
                optimizer.step()
                optimizer.zero_grad()
                if number == at:
                    break

    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make()
        model, optimizer, steps = run.join(model, sgd(model), loader(4, data(33)))
        script(model, optimizer, (steps for _ in run.epochs(2)))
        return parameters(model)

    model = make()
    script(model, sgd(model), [batches(data(33), epoch) for epoch in range(2)])
    for result in run_world(4, body):
        assert_equal(result, model)


def test_two_passes_in_one_epoch_and_evaluation_between() -> None:
    """The second pass has an order of its own; an evaluation, joined or not, changes nothing."""

    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make()
        model, optimizer, steps, held_out = run.join(model, sgd(model), loader(4, data(33)), loader(4, data(18)))
        for _ in run.epochs(1):
            for _ in range(2):
                train(model, optimizer, [steps])
                model.eval()
                with torch.no_grad():
                    seen = sum(len(x) for x, _ in held_out)
                    loss_of(model, *data()[:])
                model.train()
        return parameters(model) | {"seen": torch.tensor(seen)}

    results = run_world(4, body)
    assert [int(result["seen"]) for result in results] == [5, 5, 4, 4]
    for result in results[1:]:
        assert all(torch.equal(result[name], results[0][name]) for name in results[0] if name != "seen")


class Breaking(torch.autograd.Function):
    """The identity, whose backward pass fails when it is told to."""

    fails = False

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if Breaking.fails:
            raise FloatingPointError("on purpose")
        return gradient


class Fragile(MLP):
    def forward(self, x: Tensor) -> Tensor:
        return self.layers[2:](Breaking.apply(self.layers[:2](x)))


@pytest.mark.parametrize("with_loader", [True, False])
def test_going_on_after_a_backward_pass_that_failed(with_loader: bool) -> None:
    """Everywhere at the same step: what was half exchanged is forgotten."""

    def script(model: nn.Module, optimizer: Optimizer, steps: Iterable[Any]) -> None:
        for number, (x, y) in enumerate(steps):
            Breaking.fails = number == 1
            try:
                loss_of(model, x, y).backward()
                optimizer.step()
            except FloatingPointError:
                pass
            optimizer.zero_grad()

    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make(Fragile)
        model, optimizer, steps = run.join(model, sgd(model), loader(2, data(32)))
        own = batches(data(32), 0, whole=4)[run.rank :: 2]
        script(model, optimizer, steps if with_loader else own)
        return parameters(model)

    model = make(Fragile)
    script(model, sgd(model), batches(data(32), 0))
    for result in run_world(2, body):
        assert_equal(result, model)


def test_a_worker_that_ends_early_is_named() -> None:
    def body(world: WorkerWorld) -> None:
        run = world.start()
        model = run.join(make())
        if run.rank == 1:
            run.close()
            return
        with pytest.raises(PeerLost, match="worker 1"):
            loss_of(model, *data()[:4]).backward()

    run_world(2, body)


def test_dataloader_processes_and_a_dataset_smaller_than_the_world() -> None:
    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make()
        model, optimizer, steps = run.join(model, sgd(model), loader(4, data(2), num_workers=1))
        train(model, optimizer, (steps for _ in run.epochs(2)))
        return parameters(model)

    model = make()
    train(model, sgd(model), [batches(data(2), epoch) for epoch in range(2)])
    for result in run_world(4, body):
        assert_equal(result, model)


def test_a_pass_that_reaches_no_parameter_is_no_exchange() -> None:
    def body(world: WorkerWorld) -> None:
        run = world.start()
        run.join(make())
        if run.rank == 0:
            torch.ones(2, requires_grad=True).sum().backward()
            torch.autograd.grad(loss_of(make(), *data()[:2]), [torch.ones(1, requires_grad=True)], allow_unused=True)

    run_world(2, body)


def test_second_derivatives() -> None:
    """A penalty on the gradient: autograd.grad inside the forward pass is the script's own affair."""

    def script(model: nn.Module, optimizer: Optimizer, steps: Iterable[Any]) -> None:
        for x, y in steps:
            x = x.clone().requires_grad_()
            output = model(x)
            (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
            ((output - y).square().mean() + slope.square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()

    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make()
        model, optimizer, steps = run.join(model, sgd(model), loader(2))
        script(model, optimizer, steps)
        return parameters(model)

    model = make()
    script(model, sgd(model), batches(data(), 0))
    for result in run_world(2, body):
        assert_equal(result, model)


def test_an_empty_dataset() -> None:
    def body(world: WorkerWorld) -> None:
        run, model = world.start(), make()
        empty = DataLoader(TensorDataset(torch.zeros(0, 6), torch.zeros(0, 3)), batch_size=2)
        model, optimizer, steps = run.join(model, sgd(model), empty)
        train(model, optimizer, (steps for _ in run.epochs(2)))
        assert len(steps) == 0

    run_world(2, body)


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Each dataloader process reads its own part, so each has a remainder of its own, in the middle of an epoch."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        info = get_worker_info()
        for number in range(info.id, 34, info.num_workers):
            yield data()[number]


def test_steps_some_have_no_sample_for_in_the_middle_of_an_epoch() -> None:
    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make()
        model, optimizer, steps = run.join(model, sgd(model), DataLoader(Stream(), batch_size=2, num_workers=2))
        counts = []
        for epoch in run.epochs(2):
            for x, y in steps:
                loss_of(model, x, y).backward()
                optimizer.step()
                optimizer.zero_grad()
                counts += [len(x)] * (epoch == 0)
        return parameters(model) | {"counts": torch.tensor(counts)}

    results = run_world(4, body)
    counts = [result.pop("counts") for result in results]
    assert [len(own) for own in counts] == [6, 4, 4, 4]
    assert sum(int(own.sum()) for own in counts) == 34
    for result in results[1:]:
        assert all(torch.equal(result[name], results[0][name]) for name in results[0])


def test_a_list_of_batches_is_dealt_whole() -> None:
    parts = batches(data(32), 0, whole=4)[:5]

    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make()
        model, optimizer, steps = run.join(model, sgd(model), parts)
        train(model, optimizer, [steps])
        return parameters(model)

    model = make()
    train(model, sgd(model), [batches(data(32), 0)[:2], parts[4:]])
    for result in run_world(2, body):
        assert_equal(result, model)
