"""What every kind of switch conserves: nothing that workers have trained is lost, whatever was under way or held back.

Gradients here do not depend on parameters, so updates add up: parameters and what waits to be sent must come to what
plain training adds, after any switches. Views change when the test says so (tests/changing.py);
tests/cli/test_switch_every_plan.py has a real coordinator, leases and servers.
"""

from pathlib import Path

import pytest
import torch
from changing import changing
from torch import nn

from shoal.core.events import PlanSwitched
from shoal.launch.context import WorkerContext
from shoal.plan.plan import Plan
from shoal.testing import WorkerWorld, run_world
from shoal.testing.world import Result
from shoal.train.run import Run
from shoal.watch.tail import JournalTail
from shoal.wire import kernels

kernels.warm(["topk"])  # once here instead of once in every worker
STEPS = 12
"""Of each plan, or a round more."""


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(70, 50), nn.Linear(70, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x).sum() + self.second(x).sum()


def batch(worker: int, step: int) -> torch.Tensor:
    return torch.randn(6, 70, generator=torch.Generator().manual_seed(100 * worker + step))


def train(world: WorkerWorld, plans: list[str], links: bool) -> Result:
    """Parameters, what waits to be sent, and the steps at which plans began."""
    group, session = changing(world, links)
    run = Run(WorkerContext(group, "run", world.dir / "run", plans[0], 0, begun=False), Plan.parse(plans[0]))
    model = Linear()
    model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
    state = run.state(step=0)
    for step in range(STEPS * len(plans)):
        optimizer.zero_grad()
        model(batch(run.rank, step)).backward()
        optimizer.step()
        state.step = step + 1
        if state.step % STEPS == 0 and state.step < STEPS * len(plans):
            session.next_plan = str(Plan.parse(plans[state.step // STEPS]))
    run._together.settle()
    (joined,) = run._together.joined
    waits = {name: one.values.clone() for name, one in joined.synchronizer.state().items()}
    run.close()
    told = [event for event in read(world.dir, group.slot) if isinstance(event, PlanSwitched)]
    assert [event.plan for event in told] == [str(Plan.parse(plan)) for plan in plans[1:]]
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    residuals = {f"waits_{n.partition('.')[2]}": t for n, t in waits.items() if n.startswith("residual.")}
    return parameters | residuals | {"began": torch.tensor([0, *(event.step for event in told)])}


def read(folder: Path, worker: int) -> list[object]:
    return list(JournalTail(folder / "run" / f"worker-{worker}.jsonl").read())


def expected(plans: list[str], began: list[int]) -> Result:
    """The same steps in one process: the mean of both workers' gradients, or their sum where all changes count."""
    model, optimizer = Linear(), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS * len(plans)):
        plan = plans[max(place for place, first in enumerate(began) if first <= step)]
        optimizer.zero_grad()
        for worker in range(2):
            (model(batch(worker, step)) * (1.0 if "datagrams" in plan else 0.5)).backward()
        optimizer.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


CHAINS = {
    "late means are applied": ["allreduce", "stale(3)", "local(2)", "stale(1)", "allreduce"],
    "residuals of gradients, also late": ["topk(0.1)", "stale(2), topk(0.1)", "topk(0.2)", "stale(1), topk(0.1)"],
    "residuals of gradients reach a plain plan": ["stale(2), topk(0.1)", "allreduce"],
    "residuals of changes, also overlapped": [
        "local(2), topk(0.1)",
        "local(4, overlap=true), topk(0.1)",
        "local(4, fragments=2), topk(0.2)",
        "local(2), topk(0.1)",
    ],
    "pairs": ["mix(steps=4)", "allreduce", "mix(steps=3)", "local(2)"],
    "datagrams": ["datagrams(steps=3)", "stale(1)", "datagrams(steps=2)", "allreduce"],
}


@pytest.mark.parametrize("links", [False, True], ids=["one host", "links"])
@pytest.mark.parametrize("plans", CHAINS.values(), ids=CHAINS.keys())
def test_nothing_that_was_trained_is_lost(plans: list[str], links: bool) -> None:
    one, two = run_world(2, lambda world: train(world, plans, links))
    goal = expected(plans, one["began"].tolist())
    for name, value in goal.items():
        assert torch.equal(one[name], two[name])
        waits = [worker[f"waits_{name}"] for worker in (one, two) if f"waits_{name}" in worker]
        # residuals of gradients still have to go through the optimizer, those of changes are of parameters
        factor = -0.1 if "local" not in plans[-1] else 1.0
        found = sum((factor * each.view_as(value) for each in waits), one[name])
        torch.testing.assert_close(found, value, rtol=0, atol=2e-4)
