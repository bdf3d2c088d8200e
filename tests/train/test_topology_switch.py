"""Row 12 of docs/systems.toml: sums along any tree of workers, and another tree while the training goes on."""

import torch
from changing import changing
from torch import nn

from shoal.launch.context import WorkerContext
from shoal.plan.plan import Plan
from shoal.testing import WorkerWorld, run_world
from shoal.testing.world import Result
from shoal.train.run import Run

PLANS = ["allreduce(chain)", "allreduce(star)", "allreduce(tree)", "allreduce(edges=3-1:1-0:0-2)"]
STEPS, WORKERS = 5, 4


def numbers(worker: int, step: int) -> torch.Tensor:
    """Whole numbers, so that sums are exact in whatever order they are made."""
    generator = torch.Generator().manual_seed(100 * worker + step)
    return torch.randint(-50, 50, (3, 9), generator=generator).float()


def test_what_is_applied_is_the_exact_sum_of_all_updates_over_every_topology() -> None:
    total = sum(numbers(worker, step).sum(0) for worker in range(WORKERS) for step in range(STEPS * len(PLANS)))

    def body(world: WorkerWorld) -> Result:
        group, session = changing(world, links=True)
        run = Run(WorkerContext(group, "run", world.dir / "run", PLANS[0], 0, begun=False), Plan.parse(PLANS[0]))
        model = nn.Linear(9, 4, bias=False)
        nn.init.ones_(model.weight)
        model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=1.0), loss="sum")
        state = run.state(step=0)
        for step in range(STEPS * len(PLANS)):
            model(numbers(group.slot, step)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            state.step = step + 1
            if state.step % STEPS == 0 and state.step // STEPS < len(PLANS):
                session.next_plan = str(Plan.parse(PLANS[state.step // STEPS]))
        assert run.plan == Plan.parse(PLANS[-1])
        return {"weight": model.weight.detach().clone()}

    for result in run_world(WORKERS, body):
        assert torch.equal(result["weight"], (1.0 - total).expand(4, 9))
