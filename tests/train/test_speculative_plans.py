"""`async(speculate=…)` on processes: forward passes made again on fresher values, unseen by the script."""

import multiprocessing
import time
from collections.abc import Callable

import pytest
import torch
from by_servers import run_served
from forked import soon
from test_server_systems import told
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from shoal.testing.world import Result, WorkerWorld
from shoal.train.run import Run

BATCHES, BATCH = 40, 2


class TurnTaking:
    """Lets worker 1 push while worker 0 is in its forward pass, again and again, however busy the machine is."""

    def __init__(self) -> None:
        self.called, self.pushed = multiprocessing.Value("i", 0), multiprocessing.Value("i", 0)
        """Forward passes of worker 0, steps of worker 1."""

    def take_turn(self, rank: int) -> None:
        if rank == 0:
            self.called.value += 1
            before = self.pushed.value
            soon(2.0 if before < 4 else 0.05, lambda: self.pushed.value > before)
        elif self.pushed.value < 4:
            soon(10.0, lambda: self.called.value > self.pushed.value)


class SlowCounter(nn.Module):
    """With plain SGD at rate 1 its count is that of the samples trained."""

    def __init__(self, take_turn: Callable[[], None]) -> None:
        super().__init__()
        self.count, self.norm = nn.Parameter(torch.zeros(())), nn.BatchNorm1d(1)
        self.take_turn, self.forwards, self.seen = take_turn, 0, 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.forwards, self.seen = self.forwards + 1, float(self.count.detach())
        self.norm(x)
        self.take_turn()
        return -self.count * len(x)


def counted(plan: str) -> list[Result]:
    """Restarts of each worker, and what came of them."""
    turns = TurnTaking()

    def body(world: WorkerWorld, start: Callable[[], Run]) -> Result:
        run, rank = start(), world.group.rank
        model = SlowCounter(lambda: turns.take_turn(rank))
        loader = DataLoader(TensorDataset(torch.rand(BATCHES * BATCH, 1)), batch_size=BATCH * 2)
        model, optimizer, steps = run.join(model, torch.optim.SGD(model.parameters(), lr=1.0), loader, loss="sum")
        older = 0
        for _ in run.epochs(1):
            for (x,) in steps:
                loss = model(x)
                older += float(model.count.detach()) != model.seen
                loss.backward()
                optimizer.step()
                turns.pushed.value += rank
                optimizer.zero_grad()
        run.close()
        found = told(run)
        whole = {"count": model.count.detach(), "batches": model.norm.num_batches_tracked}
        numbers = {"restarts": found.restarts, "gained": found.gained, "pushes": found.pushes, "older": older,
                   "forwards": model.forwards}  # fmt: skip
        return whole | {name: torch.tensor(value) for name, value in numbers.items()}

    return run_served(2, plan, body)


@pytest.mark.parametrize("plan", ["spec-sync", "server(shards=2), async(speculate=1, round=9)"])
def test_a_restart_trains_its_batch_once_on_values_of_its_second_pass(plan: str) -> None:
    slow, fast = counted(plan)
    assert slow["restarts"] > 0
    assert slow["gained"] >= slow["restarts"]
    for each in (slow, fast):
        assert each["count"] == BATCHES * BATCH
        assert each["forwards"] == each["pushes"] + each["restarts"]
        assert each["older"] == 0, "the graph is that of the newest values"
    assert slow["batches"] == fast["batches"], (
        "a batch counts once in running statistics, which are averaged at the end"
    )
    assert slow["batches"] <= max(slow["pushes"], fast["pushes"])


def test_without_speculation_nothing_is_made_again() -> None:
    for each in counted("server, async"):
        assert each["restarts"] == 0
        assert each["forwards"] == each["pushes"]


def test_a_model_that_changes_its_input_in_place_is_not_called_again() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            time.sleep(0.01)
            return -self.count * x.add_(1).sum()

    def body(world: WorkerWorld, start: Callable[[], Run]) -> Result:
        run, model = start(), InPlace()
        loader = DataLoader(TensorDataset(torch.zeros(16, 1)), batch_size=2)
        model, optimizer, steps = run.join(model, torch.optim.SGD(model.parameters(), lr=1.0), loader, loss="sum")
        for _ in run.epochs(1):
            for (x,) in steps:
                model(x).backward()
                optimizer.step()
                optimizer.zero_grad()
        run.close()
        return {"restarts": torch.tensor(told(run).restarts), "count": model.count.detach()}

    for each in run_served(2, "server, async(speculate=0.1)", body):
        assert each["restarts"] == 0
        assert each["count"] == 16
