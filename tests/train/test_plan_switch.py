"""Switching plans between two steps: what carries over, what is named as dropped, and that replicas stay one model.

Views change when the test says so (tests/changing.py); tests/cli/test_switch_command.py has a real coordinator.
"""

import os
from pathlib import Path

import pytest
import torch
from changing import changing
from torch import nn

from shoal.core.errors import UsageError
from shoal.core.events import PlanSwitched
from shoal.groups.shared_memory import SharedGroup
from shoal.launch.context import WorkerContext
from shoal.plan.plan import Plan
from shoal.plan.switching import check_switch
from shoal.testing import WorkerWorld, run_world
from shoal.testing.world import Result
from shoal.train.run import Run
from shoal.watch.tail import JournalTail
from shoal.wire import kernels

kernels.warm()  # once here instead of once in every worker
STEPS = 4
"""Of each plan."""


class Linear(nn.Module):
    """Its loss is linear in the parameters: gradients do not depend on them, so updates add up."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(7, 5), nn.Linear(7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x).sum() + self.second(x).sum()


def train(world: WorkerWorld, plans: list[str], links: bool) -> tuple[Run, nn.Module]:
    """`STEPS` steps by each plan."""
    group, session = changing(world, links)
    run = Run(WorkerContext(group, "run", world.dir / "run", plans[0], 0, begun=False), Plan.parse(plans[0]))
    model = Linear()
    model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
    generator = torch.Generator().manual_seed(11 + group.rank)
    for number, plan in enumerate(plans):
        if number:
            session.switch(str(Plan.parse(plan)))
            assert str(run.plan) == str(Plan.parse(plan))
        for _ in range(STEPS):
            optimizer.zero_grad(set_to_none=False)
            model(torch.randn(6, 7, generator=generator)).backward()
            optimizer.step()
    run._journal.flush()
    return run, model


def weights(model: nn.Module) -> Result:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def switched(folder: Path, worker: int = 0) -> list[PlanSwitched]:
    events = JournalTail(folder / "run" / f"worker-{worker}.jsonl").read()
    return [event for event in events if isinstance(event, PlanSwitched)]


def far(left: Result, right: Result) -> float:
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def plain(steps: int) -> Result:
    """The same steps in one process, with the mean of both workers' gradients."""
    model, generators = Linear(), [torch.Generator().manual_seed(11 + rank) for rank in range(2)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        (sum(model(torch.randn(6, 7, generator=generator)) for generator in generators) / 2).backward()
        optimizer.step()
    return weights(model)


CHAINS = {
    "residuals are added to the next gradient": (False, ["topk(0.1)", "allreduce"]),
    "the same over links": (True, ["topk(0.1)", "allreduce(tree)", "onebit, meet(twostage)", "allreduce(edges=1-0)"]),
    "residuals go on in another codec": (False, ["topk(0.1)", "onebit", "threshold(0.5)", "allreduce"]),
    "what waits at owners": (False, ["onebit, meet(twostage)", "topk(0.2)", "allreduce"]),
    "factors of other ranks": (False, ["lowrank(1)", "lowrank(2)", "allreduce"]),
    "by part": (False, ["topk(0.1)", "first.*: onebit; *: topk(0.2)", "first.*: topk(0.1); *: bsp", "allreduce"]),
    "a guard begins anew": (False, ["topk(0.1), guard(0.9, 2)", "topk(0.2), guard(0.9, 2)", "allreduce"]),
}


@pytest.mark.parametrize(("links", "plans"), CHAINS.values(), ids=CHAINS.keys())
def test_nothing_that_waited_to_be_sent_is_lost(links: bool, plans: list[str]) -> None:
    """After the last switch, to a plan that sends all there is, the sum of all updates is that of plain training."""

    def body(world: WorkerWorld) -> Result:
        return weights(train(world, plans, links)[1])

    one, two = run_world(2, body)
    assert far(one, two) == 0.0
    assert far(one, plain(STEPS * len(plans))) < 1e-5


def test_plans_that_round_follow_each_other() -> None:
    plans = ["allreduce", "int8", "fp16", "topk(0.1)", "wire(auto)", "allreduce"]

    def body(world: WorkerWorld) -> Result:
        return weights(train(world, plans, links=True)[1])

    one, two = run_world(2, body)
    assert far(one, two) == 0.0
    assert far(one, plain(STEPS * len(plans))) < 0.05  # int8 and fp16 round, and keep no residual


def test_what_does_not_carry_over_is_named() -> None:
    def body(world: WorkerWorld) -> Result:
        train(world, ["dgc(ratio=0.1, momentum=0.5)", "topk(0.1)", "allreduce"], False)
        first, second = switched(world.dir, world.group.slot)
        assert (first.step, first.number, first.carried) == (4, 1, ["residuals"])
        assert first.dropped == ["the codec's momentum"]
        assert (second.step, second.number, second.carried, second.dropped) == (8, 2, ["residuals"], [])
        return {}

    run_world(2, body)


def test_memory_of_plans_before_is_given_back() -> None:
    def blocks(world: WorkerWorld, plans: list[str]) -> Result:
        assert isinstance(world.group, SharedGroup)
        run, _ = train(world, plans, False)
        run._together.switcher.step_ended()  # as the loader does when it is asked for the next batch
        world.group.gather(b"")
        return {"blocks": torch.tensor([os.fstat(world.group.arena.descriptor).st_blocks])}

    many = run_world(2, lambda world: blocks(world, ["allreduce", "int8", "allreduce", "topk(0.1)", "int8"]))
    one = run_world(2, lambda world: blocks(world, ["int8"]))
    assert many[0]["blocks"] <= one[0]["blocks"]


def test_a_world_of_one_takes_any_plan() -> None:
    """Nothing is exchanged, but the script runs as it does with several workers."""

    def body(world: WorkerWorld) -> Result:
        run = world.start("allreduce")
        run.switch("server(shards=2)")  # which has nothing to serve
        run.switch("allreduce, int8")
        assert str(run.plan) == "allreduce, every(1), int8(1024)"
        return {}

    run_world(1, body)


def test_members_that_are_fixed_cannot_switch() -> None:
    def body(world: WorkerWorld) -> Result:
        run = world.start("allreduce")
        with pytest.raises(UsageError, match="no coordinator to agree by; start it with shoal run"):
            run.switch("allreduce, int8")
        run.switch("allreduce")  # it is what there is
        return {}

    run_world(2, body)


def test_a_plan_that_does_not_fit_is_refused_before_anybody_hears_of_it() -> None:
    def refuse(before: str, after: str, why: str) -> None:
        with pytest.raises(UsageError, match=why):
            check_switch(Plan.parse(before), Plan.parse(after), 2)

    refuse("allreduce", "alone", "no run can be switched from or to")
    refuse("alone", "allreduce", "no run can be switched from or to")
    refuse("allreduce", "dorefa(2)", "how the model is kept")
    refuse("dorefa(2)", "allreduce", "how the model is kept")
    refuse("allreduce", "balance(2:1:1)", "3 shares for 2 workers")
    refuse("allreduce", "int8, int8, int8", "third codec")
    assert check_switch(Plan.parse("dorefa(2), int8"), Plan.parse("fp16, dorefa(2)"), 2) == []
