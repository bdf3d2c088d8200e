"""Switching to servers, from them, and to other numbers of them: values, counts and what waits to be sent go on.

Views change when the test says so (tests/changing.py); tests/cli/test_server_switch_command.py has a real launcher.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
import torch
from changing import Told, changing
from loops import assert_equal, batches, data, loader, parameters, train
from models import make
from torch import nn

from shoal.core.errors import UsageError
from shoal.core.events import PlanSwitched, ServerCounted
from shoal.launch.context import WorkerContext
from shoal.launch.placement import SERVICES_STAY
from shoal.launch.service_folder import ServiceFolder
from shoal.launch.services import ServiceProcesses
from shoal.plan.plan import Plan
from shoal.plan.switching import check_switch
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.run import Run
from shoal.train.servers import plan_services
from shoal.watch.tail import JournalTail
from shoal.wire import kernels

kernels.warm(["topk"])  # once here instead of once in every worker
EPOCHS = 6


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)  # with momentum, each worker of stale(0) would have its own


Begin = Callable[[WorkerWorld], tuple[Run, Told]]


@contextmanager
def served(plans: list[str], size: int = 2) -> Iterator[Begin]:
    """The servers of all plans, as a launcher would have started them one after the other."""
    folder = ServiceFolder()
    with ExitStack() as stack:
        for number, plan in enumerate(plans):
            services = ServiceProcesses(plan_services(Plan.parse(plan), size), folder=folder, plan=number)
            services.open()
            stack.callback(services.close)

        def begin(world: WorkerWorld) -> tuple[Run, Told]:
            group, session = changing(world, links=False)
            first = Plan.parse(plans[0])
            context = WorkerContext(
                group, "run", world.dir / "run", str(first), 0, begun=False, servers=str(folder.path)
            )
            return Run(context, first), session

        yield begin
    folder.close()


def switched(world: WorkerWorld, kind: type) -> list[object]:
    events = JournalTail(world.dir / "run" / f"worker-{world.group.slot}.jsonl").read()
    return [event for event in events if isinstance(event, kind)]


def test_servers_come_go_and_multiply_and_training_equals_one_process() -> None:
    """SGD under stale(0) is every(1), so all of it is; a round longer than a pass ends with it, and so a plan does."""
    plans = [
        "allreduce",
        "server",
        "server(shards=3)",
        "server(shards=2), stale(0, round=2)",
        "server(shards=3), stale(0, round=50)",
        "server, local(1)",
        "allreduce, local(1)",
        "allreduce",
    ]
    expected = make("mlp")
    train(expected, sgd(expected), [batches(data(37), epoch) for epoch in range(EPOCHS)])

    def body(world: WorkerWorld) -> Result:
        run, session = begin(world)
        model = make("mlp")
        model, optimizer, steps = run.join(model, sgd(model), loader(2, data(37)))
        following = iter(plans[1:])

        def ask() -> None:
            if run.step % 4 == 2 and (plan := next(following, None)):
                session.next_plan = str(Plan.parse(plan))

        train(model, optimizer, (steps for _ in run.epochs(EPOCHS)), ask)
        assert str(run.plan) == str(Plan.parse(plans[-1]))
        run.close()
        return parameters(model)

    with served(plans) as begin:
        one, two = run_world(2, body)
    assert_equal(one, expected, 1e-5)
    assert all(torch.equal(one[name], two[name]) for name in one)


class Linear(nn.Module):
    """Its loss is linear in the parameters: gradients do not depend on them, so updates add up."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(70, 50), nn.Linear(70, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x).sum() + self.second(x).sum()


def test_residuals_are_cut_anew_and_totals_count_on() -> None:
    """What has reached the servers, and what waits at the workers, add up to what plain training adds."""
    plans = ["server, stale(0, round=2), topk(0.1)", "server(shards=3), stale(0, round=2), topk(0.2)", "server"]
    steps = 4

    def body(world: WorkerWorld) -> Result:
        run, session = begin(world)
        model = Linear()
        model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        state, waits = run.state(step=0), {}
        for step in range(2 * steps):
            if step == steps - 1:
                session.next_plan = str(Plan.parse(plans[1]))
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(100 * run.rank + step)
            model(torch.randn(6, 70, generator=generator)).backward()
            optimizer.step()
            state.step = step + 1
        (joined,) = run._together.joined
        waits = {name: one.values for name, one in joined.synchronizer.state().items()}
        run.close()
        (told,) = switched(world, PlanSwitched)
        assert isinstance(told, PlanSwitched)
        assert (told.carried, told.dropped) == (["residuals"], [])
        counted = switched(world, ServerCounted)[-1]
        assert isinstance(counted, ServerCounted)
        assert (counted.pushes, counted.up > 0) == (2 * steps, True)
        return parameters(model) | {f"waits_{name.partition('.')[2]}": tensor for name, tensor in waits.items()}

    with served(plans) as begin:
        one, two = run_world(2, body)
    model = Linear()
    for step in range(2 * steps):
        for worker in range(2):
            generator = torch.Generator().manual_seed(100 * worker + step)
            (model(torch.randn(6, 70, generator=generator)) / 2).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        waits = [worker[f"waits_{name}"] for worker in (one, two) if f"waits_{name}" in worker]
        assert any(bool(each.any()) for each in waits) or "bias" in name  # small layers are sent whole
        found = sum(waits, one[name])
        torch.testing.assert_close(found, parameter.detach() - 0.1 * parameter.grad, rtol=0, atol=1e-4)


def test_what_servers_cannot_keep_is_refused_before_anybody_hears_of_it() -> None:
    def body(world: WorkerWorld) -> Result:
        run, _ = begin(world)
        model = nn.Linear(3, 2).double()
        run.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        with pytest.raises(UsageError, match="'weight' is not of float32"):
            run.switch("server, stale(2)")
        return {}

    with served(["allreduce"]) as begin:
        run_world(2, body)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ("alone", "its workers train models of their own"),
        ("first.*: server, stale(0); *: allreduce", "handed over when the script joins the model"),
    ],
)
def test_plans_that_are_begun_with_a_run_are_refused(plan: str, why: str) -> None:
    for pair in ((Plan(), Plan.parse(plan)), (Plan.parse(plan), Plan.parse("server"))):
        with pytest.raises(UsageError, match=f"no run can be switched from or to .*{why}"):
            check_switch(*pair, workers=2)


def test_servers_between_hosts_stay() -> None:
    for pair in ((Plan(), Plan.parse("server")), (Plan.parse("server"), Plan.parse("server(shards=2)"))):
        with pytest.raises(UsageError, match="starts or ends servers"):
            check_switch(*pair, 2, SERVICES_STAY)
    assert check_switch(Plan(), Plan.parse("int8"), 2, SERVICES_STAY) == []
