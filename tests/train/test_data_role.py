"""The script in the role of a data server: it gets as far as its training, then serves the loaders it has joined."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shoal.core.errors import UsageError
from shoal.data.tier.preparing import BatchPreparer
from shoal.groups.base import SingleWorkerGroup
from shoal.launch.context import WorkerContext
from shoal.launch.data_seats import DataServerSeat
from shoal.plan.plan import Plan
from shoal.train import data_role
from shoal.train.data_role import DataRun
from shoal.train.run import Run


class ServingBegan(Exception):  # noqa: N818  (stands for serving, which has no end)
    pass


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[BatchPreparer]:
    """The loaders that are served."""
    found: list[BatchPreparer] = []

    def serve(address: str, lock: object, loaders: list[BatchPreparer]) -> None:
        found.extend(loaders)
        raise ServingBegan

    monkeypatch.setattr(data_role, "serve_batches", serve)
    return found


@pytest.fixture
def run(tmp_path: Path) -> DataRun:
    context = WorkerContext(SingleWorkerGroup(), "one", tmp_path, "", 3, begun=True)
    return DataRun(context, Plan(), DataServerSeat(1, "ipc://nowhere"), 4)


def joined(run: DataRun, size: int = 10) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    model = nn.Linear(1, 1)
    loader = DataLoader(TensorDataset(torch.zeros(size, 1)), batch_size=1)
    result: tuple[nn.Module, torch.optim.Optimizer, Any] = run.join(
        model, torch.optim.SGD(model.parameters(), lr=0.1), loader
    )
    return result


def test_it_has_everything_that_a_run_has(run: DataRun) -> None:
    public = {name for name in dir(Run) if not name.startswith("_")} | {"dir", "device"}
    assert public <= set(dir(run))


def test_it_is_no_worker_and_never_the_main_one(run: DataRun) -> None:
    assert (run.rank, run.size, run.is_main) == (5, 4, False)
    assert run.mean(2.0) == 2.0
    run.barrier()


def train_by_epochs(run: DataRun, loader: Any, optimizer: torch.optim.Optimizer) -> None:
    for _ in run.epochs(2):
        raise AssertionError("it trains")


def train_by_loader(run: DataRun, loader: Any, optimizer: torch.optim.Optimizer) -> None:
    for _ in loader:
        raise AssertionError("it trains")


def train_by_optimizer(run: DataRun, loader: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    raise AssertionError("it trains")


@pytest.mark.parametrize("train", [train_by_epochs, train_by_loader, train_by_optimizer])
def test_where_training_begins_it_serves_all_joined_loaders(
    run: DataRun, served: list[BatchPreparer], train: Any
) -> None:
    _, optimizer, loader = joined(run)
    joined(run, size=7)
    with pytest.raises(ServingBegan):
        train(run, loader, optimizer)
    assert [each.items for each in served] == [10, 7]


def test_a_joined_loader_is_as_long_as_a_workers(run: DataRun) -> None:
    assert len(joined(run)[2]) == 3  # ten samples, four workers


def test_the_same_seed_makes_the_same_dataset(run: DataRun, tmp_path: Path) -> None:
    drawn = torch.rand(1)
    context = WorkerContext(SingleWorkerGroup(), "one", tmp_path, "", 3, begun=True)
    DataRun(context, Plan(), DataServerSeat(0, "ipc://nowhere"), 4)
    assert torch.rand(1) == drawn


def test_without_a_loader_there_is_nothing_to_serve(run: DataRun, served: list[BatchPreparer]) -> None:
    with pytest.raises(UsageError, match="nothing to serve: join the DataLoader"):
        next(iter(run.epochs(1)))
