"""Local steps pass the conformance case, and equal what a few lines of arithmetic give."""

import pytest
import torch
from torch import Tensor

from shoal.core.errors import UsageError
from shoal.plan.plan import Plan
from shoal.sync.local.average import AverageOuter
from shoal.sync.local.bmuf import BlockMomentumOuter
from shoal.sync.local.diloco import NesterovOuter
from shoal.sync.local.easgd import ElasticAveragingOuter
from shoal.sync.local.outer import OuterOptimizer
from shoal.sync.local.rounds import LocalStepsSynchronizer
from shoal.sync.local.sma import ModelAveragingOuter
from shoal.sync.synchronizer import EqualWeights, Part
from shoal.testing import SynchronizerCase
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.build import EngineChooser, build_exchange
from shoal.train.step_transaction import StepTransaction


def exchange(group, directory, plan=""):
    return build_exchange(Plan.parse(plan) if plan else Plan(), group, EngineChooser(group, directory))


class TestAverage(SynchronizerCase):
    synchronous = False

    def make(self, group, directory):
        return LocalStepsSynchronizer(exchange(group, directory), AverageOuter(), 4)


class TestDilocoWithResiduals(SynchronizerCase):
    """Outer momentum is equal on all workers; what waits to be sent is a sum."""

    sizes = (2, 2)
    synchronous = False

    def make(self, group, directory):
        plan = "lowrank(1)"
        return LocalStepsSynchronizer(exchange(group, directory, plan), NesterovOuter(0.7, 0.5), 2)


class TestBlockMomentum(SynchronizerCase):
    sizes = (2, 2)
    synchronous = False

    def make(self, group, directory):
        return LocalStepsSynchronizer(exchange(group, directory), BlockMomentumOuter(0.5, 0.5), 3, reset=True)


class TestElasticAveraging(SynchronizerCase):
    """Replicas differ after a round, and are the centre once they are settled."""

    sizes = (2, 2)
    synchronous = False

    def make(self, group, directory):
        return LocalStepsSynchronizer(exchange(group, directory), ElasticAveragingOuter(), 2)


class TestModelAveraging(SynchronizerCase):
    sizes = (2, 2)
    synchronous = False

    def make(self, group, directory):
        return LocalStepsSynchronizer(exchange(group, directory), ModelAveragingOuter(momentum=0.5), 2)


def opened(world: WorkerWorld, parameter: Tensor, outer: OuterOptimizer, steps: int, plan: str = ""):
    """A synchronizer of one parameter and plain SGD with rate 1."""
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    made = LocalStepsSynchronizer(exchange(world.group, world.dir, plan), outer, steps)
    session = world.group.session
    made.open(
        Part(["p"], [parameter], session, StepTransaction(session), EqualWeights(session), optimizers=[optimizer])
    )
    return made, optimizer


def move(made: LocalStepsSynchronizer, optimizer: torch.optim.Optimizer, parameter: Tensor, by: Tensor) -> None:
    """One step that changes the parameter by this much."""
    made.before_step(optimizer)
    with torch.no_grad():
        parameter.add_(by)
    made.after_step(optimizer)


def numbers(rank: int, step: int) -> Tensor:
    """Whole numbers: their sums are exact."""
    return torch.randint(-99, 99, (4, 3), generator=torch.Generator().manual_seed(10 * step + rank)).float()


def test_the_mean_conserves_what_all_have_changed() -> None:
    steps = 6

    def body(world: WorkerWorld) -> Result:
        parameter = torch.zeros(4, 3, requires_grad=True)
        made, optimizer = opened(world, parameter, AverageOuter(), 3)
        for step in range(steps):
            move(made, optimizer, parameter, numbers(world.group.rank, step))
            assert made.replicas_equal == (step % 3 == 2)
        return {"p": parameter.detach().clone(), "rounds": torch.tensor(made.totals.rounds)}

    size = 4
    expected = sum(numbers(rank, step) for rank in range(size) for step in range(steps)) / size
    for result in run_world(size, body):
        assert torch.equal(result["p"], expected)
        assert int(result["rounds"]) == 2


def outers(size: int) -> dict[str, OuterOptimizer]:
    return {
        "average": AverageOuter(),
        "plain diloco": NesterovOuter(1.0, 0.0),
        "bmuf": BlockMomentumOuter(),
        "diloco": NesterovOuter(0.7, 0.9),
        "nesterov bmuf": NesterovOuter(1.0, 1 - 1 / size),
    }


def by_hand(kind: str, size: int, steps: int, each: int) -> Tensor:
    """The papers' formulas on the sequence of mean models."""
    anchor = torch.zeros(4, 3, dtype=torch.float64)
    momentum, model = torch.zeros_like(anchor), torch.zeros_like(anchor)
    torch_anchor = anchor.clone().requires_grad_()
    sgd = torch.optim.SGD([torch_anchor], lr=0.7, momentum=0.9, nesterov=True)
    m = 1 - 1 / size
    for first in range(0, steps, each):
        block = range(first, min(steps, first + each))
        change = sum(numbers(rank, step).double() for rank in range(size) for step in block) / size
        if kind in ("average", "plain diloco"):
            anchor = anchor + change
        elif kind == "bmuf":
            momentum = m * momentum + change
            anchor = anchor + momentum
        elif kind == "nesterov bmuf":  # W(t) = W(t-1) + D(t), the replicas go on from W(t) + m D(t)
            momentum = m * momentum + (anchor + change - anchor)
            model = model + momentum
            anchor = model + m * momentum
        else:
            torch_anchor.grad = -change
            sgd.step()
            anchor = torch_anchor.detach().clone()
    return anchor


@pytest.mark.parametrize("kind", list(outers(2)))
def test_an_outer_step_is_the_formula_of_its_paper(kind: str) -> None:
    size, steps, each = 2, 7, 2  # the last round is short

    def body(world: WorkerWorld) -> Result:
        parameter = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
        made, optimizer = opened(world, parameter, outers(size)[kind], each)
        for step in range(steps):
            move(made, optimizer, parameter, numbers(world.group.rank, step).double())
        made.settle()
        return {"p": parameter.detach().clone()}

    for result in run_world(size, body):
        torch.testing.assert_close(result["p"], by_hand(kind, size, steps, each), atol=1e-9, rtol=1e-12)


def test_a_change_that_is_not_finite_does_not_count() -> None:
    def body(world: WorkerWorld) -> Result:
        parameter = torch.zeros(4, 3, requires_grad=True)
        made, optimizer = opened(world, parameter, AverageOuter(), 1)
        bad = torch.full((4, 3), torch.inf)
        move(made, optimizer, parameter, bad if world.group.rank == 1 else torch.full((4, 3), 2.0))
        first = parameter.detach().clone()
        move(made, optimizer, parameter, bad)  # on all: the round comes to nothing
        return {"first": first, "second": parameter.detach().clone(), "dropped": torch.tensor(made.totals.dropped)}

    for rank, result in enumerate(run_world(3, body)):
        torch.testing.assert_close(result["first"], torch.full((4, 3), 2.0))
        assert torch.equal(result["second"], result["first"])
        assert int(result["dropped"]) == 1 + (rank == 1)


def test_residuals_carry_over_from_round_to_round() -> None:
    """topk sends one element in twelve a round; what it left out of the first rounds follows when nothing is new."""
    rounds = 12

    def body(world: WorkerWorld) -> Result:
        parameter = torch.zeros(4, 3, requires_grad=True)
        made, optimizer = opened(world, parameter, AverageOuter(), 1, "topk(0.09), by_size(0)")
        for step in range(3 * rounds):
            change = numbers(world.group.rank, step) if step < rounds else torch.zeros(4, 3)
            move(made, optimizer, parameter, change)
        return {"p": parameter.detach().clone()}

    expected = sum(numbers(rank, step) for rank in range(2) for step in range(rounds)) / 2
    for result in run_world(2, body):
        torch.testing.assert_close(result["p"], expected, atol=1e-3, rtol=0)


def test_frozen_parameters_do_not_travel() -> None:
    def body(world: WorkerWorld) -> Result:
        trained, frozen = torch.zeros(8, requires_grad=True), torch.zeros(100)
        optimizer = torch.optim.SGD([trained], lr=1.0)
        made = LocalStepsSynchronizer(exchange(world.group, world.dir), AverageOuter(), 1)
        session = world.group.session
        part = Part(
            ["a", "b"], [trained, frozen], session, StepTransaction(session), EqualWeights(session),
            optimizers=[optimizer],
        )  # fmt: skip
        made.open(part)
        move(made, optimizer, trained, torch.ones(8))
        return {"sent": torch.tensor(made.totals.sent)}

    assert all(int(result["sent"]) < 200 for result in run_world(2, body))


def test_it_needs_an_optimizer() -> None:
    def body(world: WorkerWorld) -> Result:
        made = LocalStepsSynchronizer(exchange(world.group, world.dir), AverageOuter(), 2)
        with pytest.raises(UsageError, match="give it the optimizer too"):
            made.open(Part(["p"], [torch.zeros(2)], world.group.session))
        return {}

    run_world(2, body)
