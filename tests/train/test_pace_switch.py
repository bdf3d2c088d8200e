"""Switching between every(1) and local(…): where a round ends, and on the same model as if it was done by hand.

Views change when the test says so (tests/changing.py); tests/cli/test_switch_command.py has a real coordinator.
"""

import copy
from pathlib import Path

import pytest
import torch
from changing import Told, changing
from loops import assert_equal, batches, data, loader, parameters, train
from models import make
from torch import Tensor, nn

from shoal.core.events import PlanSwitched, RoundsMade
from shoal.launch.context import WorkerContext
from shoal.plan.plan import Plan
from shoal.testing import WorkerWorld, run_world
from shoal.testing.world import Result
from shoal.train.run import Run
from shoal.watch.tail import JournalTail
from shoal.wire import kernels

kernels.warm(["topk"])  # once here instead of once in every worker
EPOCHS = 5


def begin(world: WorkerWorld, plan: str, links: bool = False) -> tuple[Run, Told]:
    group, session = changing(world, links)
    return Run(WorkerContext(group, "run", world.dir / "run", plan, 0, begun=False), Plan.parse(plan)), session


def ask(session: Told, plan: str) -> None:
    session.next_plan = str(Plan.parse(plan))


def events(folder: Path, worker: int = 0) -> list[object]:
    return list(JournalTail(folder / "run" / f"worker-{worker}.jsonl").read())


def plain(model: nn.Module, momentum: float = 0.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)


@pytest.mark.parametrize(
    ("size", "samples", "links"),
    [(2, 37, False), (2, 37, True), (4, 33, False)],
    ids=["2 workers", "over links", "one alone has the last sample"],
)
def test_with_one_step_a_round_no_switch_changes_anything(size: int, samples: int, links: bool) -> None:
    """SGD under local(1) is every(1), so all of it is training in one process; each epoch ends with a remainder."""
    plans = ["local(1)", "allreduce", "local(1, state=reset)", "local(1, diloco, rate=1.0, momentum=0.0)", "allreduce"]
    expected = make("mlp")
    train(expected, plain(expected), [batches(data(samples), epoch) for epoch in range(EPOCHS)])

    def body(world: WorkerWorld) -> Result:
        run, session = begin(world, "allreduce", links)
        model = make("mlp")
        model, optimizer, steps = run.join(model, plain(model), loader(size, data(samples)))
        following = iter(plans)

        def switch() -> None:
            epoch, step = divmod(run.step, 5)
            if step == epoch % 4 and (plan := next(following, None)):  # all workers have samples in these steps
                ask(session, plan)

        train(model, optimizer, (steps for _ in run.epochs(EPOCHS)), switch)
        assert str(run.plan) == str(Plan.parse(plans[-1]))
        return parameters(model)

    results = run_world(size, body)
    for result in results:
        assert_equal(result, expected, 1e-5)
        assert all(torch.equal(result[name], results[0][name]) for name in result)


def batch(worker: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * worker + step)
    return torch.randn(5, 6, generator=generator), torch.randn(5, 3, generator=generator)


def loss_of(model: nn.Module, worker: int, step: int) -> Tensor:
    x, y = batch(worker, step)
    return (model(x) - y).square().mean()


def simulate(phases: list[tuple[int, int]], momentum: float) -> nn.Module:
    """Two replicas one after the other; phases of (steps a round, steps), 0 for every(1)."""
    replicas = [make("mlp") for _ in range(2)]
    optimizers = [plain(replica, momentum) for replica in replicas]
    step = 0
    for every, steps in phases:
        if not every:  # what worker 0's optimizer remembers is everybody's
            optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
        for made in range(1, steps + 1):
            for worker, replica in enumerate(replicas):
                optimizers[worker].zero_grad()
                loss_of(replica, worker, step).backward()
            if not every:
                _average_gradients(replicas)
            for optimizer in optimizers:
                optimizer.step()
            if every and made % every == 0:
                _average_parameters(replicas)
            step += 1
    return replicas[0]


def _average_gradients(replicas: list[nn.Module]) -> None:
    for one, two in zip(*(replica.parameters() for replica in replicas), strict=True):
        assert one.grad is not None
        assert two.grad is not None
        mean = (one.grad + two.grad) / 2
        one.grad, two.grad = mean, mean.clone()


def _average_parameters(replicas: list[nn.Module]) -> None:
    with torch.no_grad():
        for one, two in zip(*(replica.parameters() for replica in replicas), strict=True):
            mean = (one + two) / 2
            one.copy_(mean)
            two.copy_(mean)


def own_loop(world: WorkerWorld, first: str, asked: dict[int, str], steps: int, momentum: float = 0.0) -> Result:
    """A script without a loader, which counts in `run.state`; `asked`: plans, by the step after which they are."""
    run, session = begin(world, first)
    model = make("mlp")
    model, optimizer = run.join(model, plain(model, momentum))
    state = run.state(step=0)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, run.rank, step).backward()
        optimizer.step()
        state.step = step + 1
        if step in asked:
            ask(session, asked[step])
    run.close()
    return parameters(model)


def test_replicas_and_momentum_are_those_of_training_by_hand() -> None:
    """Asked in the middle of a round, a plan begins at its end: 3 synchronous steps, 3 rounds of 4, 5, a round of 2."""
    asked = {2: "local(4)", 12: "allreduce", 19: "local(2)"}
    expected = simulate([(0, 3), (4, 12), (0, 5), (2, 2)], momentum=0.9)
    for result in run_world(2, lambda world: own_loop(world, "allreduce", asked, 22, momentum=0.9)):
        assert_equal(result, expected, 1e-5)


def test_replicas_that_rounds_leave_different_become_their_centre() -> None:
    def body(world: WorkerWorld) -> Result:
        return own_loop(world, "local(2, easgd)", {4: "allreduce"}, 10)

    one, two = run_world(2, body)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_rounds_count_on_and_what_does_not_carry_over_is_named() -> None:
    plans = {
        1: "local(2), topk(0.1)",
        5: "local(4), topk(0.1)",
        9: "allreduce, topk(0.1)",
        11: "local(2, diloco)",
        15: "allreduce",
    }

    def body(world: WorkerWorld) -> Result:
        return own_loop(world, "allreduce, topk(0.1)", plans, 18)

    def check(world: WorkerWorld) -> Result:
        found = body(world)
        told = [event for event in events(world.dir, world.group.slot) if isinstance(event, PlanSwitched)]
        assert [(e.step, e.carried, e.dropped) for e in told] == [
            (2, [], ["residuals"]),
            (6, ["residuals"], []),
            (10, [], ["residuals"]),
            (12, [], ["residuals"]),
            (16, [], ["the outer optimizer's momentum"]),
        ]
        rounds = [event for event in events(world.dir, world.group.slot) if isinstance(event, RoundsMade)]
        assert (rounds[-1].rounds, rounds[-1].steps) == (5, 12)
        return found

    one, two = run_world(2, check)
    assert all(torch.equal(one[name], two[name]) for name in one)
