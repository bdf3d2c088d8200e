"""One copy for all workers: equal to one process where steps do not overlap, and conserved where rows do not."""

import re
import time
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from shoal.core.errors import UsageError
from shoal.sync.engine.chooser import EngineChooser
from shoal.sync.exchange.allreduce import AllReduceExchange
from shoal.sync.shared.lock_free import LockFreeSynchronizer
from shoal.sync.synchronizer import Part
from shoal.testing import SynchronizerCase
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.step_transaction import StepTransaction

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, initial_accumulator_value=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.05, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.05),
}


def lock_free(group, directory, steps=3):
    return LockFreeSynchronizer(AllReduceExchange(group, EngineChooser(group, directory).of), group, steps)


class TestLockFree(SynchronizerCase):
    """Not synchronous; but from a round to the next step all workers look at the same memory."""

    synchronous = repeatable = False

    def make(self, group, directory):
        return lock_free(group, directory)


class SharedTraining:
    """A small model under a synchronizer that is driven by hand."""

    def __init__(self, world: WorkerWorld, kind: str, steps: int = 1000) -> None:
        self.model, self.optimizer = make(kind)
        self.synchronizer = lock_free(world.group, world.dir, steps)
        names, parameters = zip(*self.model.named_parameters(), strict=True)
        transaction, session = StepTransaction(world.group.session), world.group.session
        self.synchronizer.open(Part(names, parameters, session, transaction, optimizers=[self.optimizer]))

    def step(self, x: torch.Tensor) -> None:
        gradients(self.model, x)
        self.synchronizer.before_step(self.optimizer)
        self.optimizer.step()
        self.synchronizer.after_step(self.optimizer)

    def result(self) -> Result:
        self.synchronizer.settle()
        return values(self.model, self.optimizer)


def make(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    return model, OPTIMIZERS[kind](model.parameters())


def gradients(model: nn.Module, x: torch.Tensor) -> None:
    model.zero_grad()
    (model(x) - 1).square().mean().backward()


def inputs(count: int) -> torch.Tensor:
    return torch.randn(count, 5, 4, generator=torch.Generator().manual_seed(1))


def sequential(kind: str, rows: torch.Tensor) -> Result:
    model, optimizer = make(kind)
    for x in rows:
        gradients(model, x)
        optimizer.step()
    return values(model, optimizer)


def values(model: nn.Module, optimizer: torch.optim.Optimizer) -> Result:
    """Parameters and the optimizer's state."""
    found = {f"p{n}": p.detach().clone() for n, p in enumerate(model.parameters())}
    states = {f"s{n}.{name}": s for n, p in enumerate(model.parameters()) for name, s in optimizer.state[p].items()}
    return found | {name: state.clone() for name, state in states.items() if state is not None}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_one_worker_is_sequential_to_the_bit(kind: str) -> None:
    def body(world: WorkerWorld) -> Result:
        training = SharedTraining(world, kind, steps=4)
        for x in inputs(11):
            training.step(x)
        return training.result()

    (result,) = run_world(1, body)
    expected = sequential(kind, inputs(11))
    assert all(torch.equal(result[name], expected[name]) for name in result)


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adagrad"])
def test_workers_that_step_in_turns_equal_one_process_to_the_bit(kind: str) -> None:
    """So the optimizer's state is one as well."""
    rows = inputs(12)

    def body(world: WorkerWorld) -> Result:
        training, own = SharedTraining(world, kind), world.group.rank
        if own:
            training.synchronizer.skip_step()  # all begin the round together, so this one makes no step in it
        for number, x in enumerate(rows):
            if number % 2 == own:
                while sum(training.synchronizer.copy.steps()) < number + bool(number):
                    time.sleep(1e-4)
                training.step(x)
                if not number:
                    while training.synchronizer.copy.steps()[1] < 1:
                        time.sleep(1e-4)
        return training.result()

    expected = sequential(kind, rows)
    for result in run_world(2, body):
        assert all(torch.equal(result[name], expected[name]) for name in result)


class PausedStep(TorchDispatchMode):
    """Calls `wait` once, when a step has added its gradient to Adam's first average and not yet to the second."""

    def __init__(self, wait: Callable[[], None]) -> None:
        super().__init__()
        self.wait: Callable[[], None] | None = wait

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.addcmul_.default and self.wait:
            self.wait()
            self.wait = None
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_a_step_within_the_step_of_another_moves_nothing_by_more_than_the_rate(kind: str) -> None:
    """Worker 1 has no gradient where worker 0, which is between Adam's two averages, has one."""
    rate = 0.05

    def body(world: WorkerWorld) -> Result:
        training, paused = SharedTraining(world, kind), world.dir / "paused"
        parameters = list(training.model.parameters())
        start = [p.detach().clone() for p in parameters]
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 0.0 if world.group.rank else 1.0)

        def wait() -> None:
            paused.touch()
            while training.synchronizer.copy.steps()[1] < 1:
                time.sleep(1e-4)

        training.synchronizer.before_step(training.optimizer)
        while world.group.rank and not paused.exists():
            time.sleep(1e-4)
        with nullcontext() if world.group.rank else PausedStep(wait) as mode:
            training.optimizer.step()
        training.synchronizer.after_step(training.optimizer)
        training.synchronizer.settle()
        moved = max(float((p.detach() - before).abs().max()) for p, before in zip(parameters, start, strict=True))
        return {"moved": torch.tensor(moved), "waited": torch.tensor(mode is None or mode.wait is None)}

    for result in run_world(2, body):
        assert result["waited"]
        assert float(result["moved"]) <= 1.01 * rate


@pytest.mark.parametrize("size", [2, 4])
def test_updates_of_disjoint_sparse_rows_are_conserved_exactly(size: int) -> None:
    """Integers in floats: the copy is the start plus all updates, whoever wrote them when."""
    rows, steps = 16, 200

    def body(world: WorkerWorld) -> Result:
        table = nn.Embedding(rows * size, 3, sparse=True)
        nn.init.zeros_(table.weight)
        optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
        synchronizer = lock_free(world.group, world.dir, 64)
        session = world.group.session
        part = Part(["weight"], [table.weight], session, StepTransaction(session), sparse=[0], optimizers=[optimizer])
        synchronizer.open(part)
        own = torch.randint(0, rows, (steps, 5), generator=torch.Generator().manual_seed(world.group.rank))
        for picked in own * size + world.group.rank:
            optimizer.zero_grad()
            table(picked).sum().backward()
            synchronizer.before_step(optimizer)
            optimizer.step()
            synchronizer.after_step(optimizer)
        synchronizer.settle()
        counts = torch.bincount((own * size + world.group.rank).flatten(), minlength=rows * size)
        return {"table": table.weight.detach().clone(), "counts": counts}

    results = run_world(size, body)
    applied = sum(result["counts"] for result in results)
    for result in results:
        assert torch.equal(result["table"], -applied[:, None].float().expand(-1, 3))


def test_a_state_that_the_script_loads_becomes_the_shared_one() -> None:
    def body(world: WorkerWorld) -> Result:
        training = SharedTraining(world, "adagrad")
        saved = deepcopy(training.optimizer.state_dict())
        training.step(inputs(1)[0])
        training.optimizer.load_state_dict(saved)
        training.step(inputs(2)[1])
        state = training.optimizer.state[next(training.model.parameters())]
        return {"step": state["step"].clone()}

    assert [float(result["step"]) for result in run_world(1, body)] == [1.0]


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        (lambda p: torch.optim.RMSprop(p), "does not know what races do to RMSprop; use one of SGD, Adagrad, Adam"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5), "SGD(dampening=0.5)"),
    ],
)
def test_optimizers_that_cannot_be_shared_are_refused(optimizer, said: str) -> None:
    def body(world: WorkerWorld) -> Result:
        model = nn.Linear(2, 2)
        part = Part(["w", "b"], list(model.parameters()), optimizers=[optimizer(model.parameters())])
        with pytest.raises(UsageError, match=re.escape(said)):
            lock_free(world.group, world.dir).open(part)
        return {}

    run_world(1, body)
