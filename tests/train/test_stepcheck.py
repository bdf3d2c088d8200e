"""A step is refused if its gradients came from no exchange; `run.exchange` makes it right."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from loops import assert_equal, batches, data, loader, loss_of, parameters, sgd
from models import make
from torch import nn
from torch.optim import LBFGS, Optimizer

from shoal.core.errors import UsageError
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.run import Run


def write_gradients(model: nn.Module, loss: torch.Tensor) -> None:
    """As scripts do that compute gradients themselves."""
    found = torch.autograd.grad(loss, list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), found, strict=True):
        parameter.grad = gradient


Case = Callable[[Run, nn.Module, Optimizer, Callable[[], torch.Tensor]], None]


def in_a_world(case: Case, size: int = 2, plan: str = "", optimizer_of: Callable[[nn.Module], Optimizer] = sgd) -> None:
    """Run `case` on every worker, with a loss over rows of the worker's own."""

    def body(world: WorkerWorld) -> None:
        run = world.start(plan)
        model, optimizer = run.join(model := make(), optimizer_of(model))
        rows = [t[4 * run.rank : 4 * run.rank + 4] for t in data()[:8]]
        case(run, model, optimizer, lambda: loss_of(model, *rows))

    run_world(size, body)


REFUSED = r"gradient of 'layers.0.weight' came from no exchanged backward pass.*call run.exchange\(\)"


def never_exchanged(run: Run, model: nn.Module, optimizer: Optimizer, loss: Any) -> None:
    write_gradients(model, loss())
    with pytest.raises(UsageError, match=REFUSED):
        optimizer.step()


def after_a_step(run: Run, model: nn.Module, optimizer: Optimizer, loss: Any) -> None:
    loss().backward()
    optimizer.step()
    never_exchanged(run, model, optimizer, loss)


def in_place(run: Run, model: nn.Module, optimizer: Optimizer, loss: Any) -> None:
    loss().backward()
    optimizer.step()
    for parameter, gradient in zip(
        model.parameters(), torch.autograd.grad(loss(), list(model.parameters())), strict=True
    ):
        parameter.grad.copy_(gradient)
    with pytest.raises(UsageError, match=REFUSED):
        optimizer.step()


def held_back(run: Run, model: nn.Module, optimizer: Optimizer, loss: Any) -> None:
    with run.accumulate():
        loss().backward()
        with pytest.raises(UsageError, match=r"run.exchange\(\) inside run.accumulate\(\)"):
            run.exchange()
    with pytest.raises(UsageError, match=REFUSED):
        optimizer.step()


def of_one_layer(run: Run, model: nn.Module, optimizer: Optimizer, loss: Any) -> None:
    """The pass had no gradient of the first layer, which the script gives one."""
    model.layers[0].requires_grad_(False)
    loss().backward()
    model.layers[0].weight.grad = torch.ones(8, 6)
    with pytest.raises(UsageError, match=REFUSED):
        optimizer.step()


@pytest.mark.parametrize("case", [never_exchanged, after_a_step, in_place, held_back, of_one_layer])
def test_gradients_that_the_script_wrote_are_refused(case: Case) -> None:
    in_a_world(case)


def inside_a_closure(run: Run, model: nn.Module, optimizer: Optimizer, loss: Any) -> None:
    def closure() -> torch.Tensor:
        write_gradients(model, value := loss())
        return value

    with pytest.raises(UsageError, match=REFUSED):
        optimizer.step(closure)


def test_gradients_that_a_closure_wrote_are_refused() -> None:
    in_a_world(inside_a_closure, optimizer_of=lambda model: LBFGS(model.parameters(), max_iter=2))


def clipped(run: Run, model: nn.Module, optimizer: Optimizer, loss: Any) -> None:
    loss().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()


def replaced(run: Run, model: nn.Module, optimizer: Optimizer, loss: Any) -> None:
    loss().backward()
    for parameter in model.parameters():
        parameter.grad = 0.5 * parameter.grad
    optimizer.step()


def stepped_twice(run: Run, model: nn.Module, optimizer: Optimizer, loss: Any) -> None:
    loss().backward()
    optimizer.step()
    optimizer.step()


def zeros_and_nothing(run: Run, model: nn.Module, optimizer: Optimizer, loss: Any) -> None:
    optimizer.step()
    loss().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    optimizer.zero_grad()
    optimizer.step()


def scaled(run: Run, model: nn.Module, optimizer: Optimizer, loss: Any) -> None:
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(2):
        scaler.scale(loss()).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@pytest.mark.parametrize("case", [clipped, replaced, stepped_twice, zeros_and_nothing, scaled])
def test_what_scripts_do_with_exchanged_gradients_is_fine(case: Case) -> None:
    in_a_world(case)


def by_hand(run: Run, model: nn.Module, optimizer: Optimizer, loss: Any) -> None:
    write_gradients(model, loss())
    optimizer.step()
    run.exchange()
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    optimizer.step()


def test_alone_a_script_may_do_as_it_likes() -> None:
    in_a_world(by_hand, size=1)


def train(run: Run | None, model: nn.Module, optimizer: Optimizer, epochs: Iterable[Any]) -> None:
    """The first layer is frozen for autograd; its gradient is written as well."""
    model.layers[0].requires_grad_(False)
    for epoch in epochs:
        for x, y in epoch:
            loss = loss_of(model, x, y)
            trained = [p for p in model.parameters() if p.requires_grad]
            for parameter, gradient in zip(trained, torch.autograd.grad(loss, trained), strict=True):
                parameter.grad = gradient
            model.layers[0].weight.grad = x.mean(0).expand(8, 6).clone()
            if run is not None:
                run.exchange()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(("size", "samples"), [(2, 37), (4, 33)], ids=["uneven", "some-without"])
def test_written_gradients_that_are_exchanged_equal_one_process(size: int, samples: int) -> None:
    def body(world: WorkerWorld) -> Result:
        run = world.start()
        model, optimizer, steps = run.join(model := make(), sgd(model), loader(size, data(samples)))
        train(run, model, optimizer, (steps for _ in run.epochs(2)))
        return parameters(model)

    model = make()
    train(None, model, sgd(model), [batches(data(samples), epoch) for epoch in range(2)])
    for result in run_world(size, body):
        assert_equal(result, model)


@pytest.mark.parametrize("plan", ["", "fp16"])
def test_sums_and_means_of_two_joins_and_what_was_exchanged_before(plan: str) -> None:
    def body(world: WorkerWorld) -> Result:
        run, first, second = world.start(plan), make(), make()
        run.join(first, sgd(first), loss="sum")
        run.join(second, sgd(second))
        rows = [t[4 * run.rank : 4 * run.rank + 4] for t in data()[:8]]
        loss_of(first, *rows).backward()  # exchanged: the sum of both workers' means
        write_gradients(second, loss_of(second, *rows))
        run.exchange()  # leaves the first as it is
        second.zero_grad()
        write_gradients(second, loss_of(second, *rows))
        run.exchange()
        return {f"{i}.{n}": p.grad.clone() for i, m in enumerate((first, second)) for n, p in m.named_parameters()}

    model = make()
    loss_of(model, *data()[:8]).backward()
    for result in run_world(2, body):
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(result[f"0.{name}"], 2 * parameter.grad, rtol=2e-3, atol=1e-3)
            torch.testing.assert_close(result[f"1.{name}"], parameter.grad, rtol=2e-3, atol=1e-3)


def late(run: Run, model: nn.Module, optimizer: Optimizer, loss: Any) -> None:
    loss().backward()
    model.extra = nn.Linear(3, 3)
    optimizer.add_param_group({"params": model.extra.parameters()})
    with pytest.raises(
        UsageError, match=r"parameter 'extra.weight' \(group 1, place 0\) came into the optimizer after"
    ):
        optimizer.step()
    run.join(model.extra)
    (loss() + model.extra(torch.ones(3) * run.rank).square().sum()).backward()
    optimizer.step()
    found = {bytes(p.detach().numpy()).hex() for p in model.extra.parameters()}
    assert len({tuple(sorted(found))}) == 1
    everybody = run._group.gather("".join(sorted(found)).encode())
    assert len(set(everybody)) == 1


def test_parameters_that_came_after_join_are_refused_until_they_are_joined() -> None:
    in_a_world(late)
