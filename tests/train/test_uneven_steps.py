"""Where workers agree after several steps: scripts that leave out a batch on one worker, or take parameters in late."""

from collections.abc import Callable

import pytest
import torch
from by_servers import run_served
from loops import data, loss_of, parameters
from models import make
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shoal.core.errors import UsageError
from shoal.core.ledger import prove, read_ledger
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.run import Run

SAMPLES = 48
ENDS = [
    ("local(50)", False),
    ("local(50, easgd)", False),
    ("shared", True),
    ("shared", False),
    ("server, stale(1)", True),
]
Body = Callable[[WorkerWorld, Callable[[], Run]], Result]


def two_workers(plan: str, body: Body) -> list[Result]:
    if plan.startswith("server"):
        return run_served(2, plan, body)
    return run_world(2, lambda world: body(world, lambda: world.start(plan)))


@pytest.mark.parametrize(("plan", "scaled"), ENDS)
def test_who_makes_fewer_steps_ends_the_pass_with_the_others(plan: str, scaled: bool) -> None:
    """The pass ends in the middle of a round, so nothing makes the steps of that round equal."""

    def body(world: WorkerWorld, start: Callable[[], Run]) -> Result:
        run, model = start(), make("mlp")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, enabled=scaled)
        loader = DataLoader(TensorDataset(torch.arange(SAMPLES), *data(SAMPLES).tensors), batch_size=2)
        model, optimizer, scaler, steps = run.join(model, optimizer, scaler, loader)
        seen: list[int] = []
        for epoch in run.epochs(2):
            for number, (ids, x, y) in enumerate(steps):
                seen += (ids + 1000 * epoch).tolist()
                skips = run.rank == 1 and epoch == 0 and number == 11
                if skips and not scaled:
                    continue
                scaler.scale(loss_of(model, x, y) * (float("inf") if skips else 1.0)).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        run.close()
        proofs = prove(read_ledger(world.dir / "run")) if run.is_main else []
        rows = [[p.samples + p.skipped, p.missing, p.duplicate, int(p.finished)] for p in proofs]
        return parameters(model) | {
            "seen": torch.tensor(seen),
            "steps": torch.tensor(run.step),
            "proof": torch.tensor(rows),
        }

    one, other = two_workers(plan, body)
    assert all(torch.equal(one[name], other[name]) for name in one.keys() - {"seen", "proof"})
    expected = [*range(SAMPLES), *range(1000, 1000 + SAMPLES)]
    assert sorted(one["seen"].tolist() + other["seen"].tolist()) == expected
    assert one["proof"].tolist() == [[SAMPLES, 0, 0, 1]] * 2


@pytest.mark.parametrize("plan", ["local(4, overlap=true)", "shared", "server, stale(1)"])
def test_a_parameter_that_comes_after_join_is_refused_until_it_is_joined_with_an_optimizer(plan: str) -> None:
    def body(world: WorkerWorld, start: Callable[[], Run]) -> Result:
        run, model, head = start(), make("mlp"), nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        model, optimizer = run.join(model, optimizer)
        optimizer.add_param_group({"params": list(head.parameters())})
        loss_of(model, *data(4)[:]).backward()
        said = (
            r"shape \[3, 3\] \(group 1, place 0\) came into the optimizer after join\(\).* with an optimizer of its own"
        )
        with pytest.raises(UsageError, match=said):
            optimizer.step()
        return {}

    two_workers(plan, body)
