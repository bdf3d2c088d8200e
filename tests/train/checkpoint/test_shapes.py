"""Scripts of every shape go on from a checkpoint as if nothing had happened: the same bits at the end."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.checkpoint.manifest import newest
from shoal.train.run import Run


class Stop(Exception):  # noqa: N818
    """The power fails."""


class Training:
    """What a script of any shape needs; stops before step `stop`, when all checkpoints before it are written."""

    def __init__(self, run: Run, stop: int | None) -> None:
        torch.manual_seed(5)
        self.run, self.stop = run, stop
        self.model: nn.Module = nn.Sequential(nn.Linear(3, 6), nn.Dropout(0.3), nn.Linear(6, 2))
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.model.parameters(), lr=0.03)
        data = TensorDataset(torch.randn(23, 3), torch.randn(23, 2))
        loaders = [DataLoader(data, 4 // run.size, shuffle=True) for _ in range(2)]
        self.model, self.optimizer, self.loader, self.other = run.join(self.model, self.optimizer, *loaders)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: 0.97**n)

    def step(self, x: Any, y: Any, *, update: bool = True) -> None:
        if self.stop is not None and self.run.step >= self.stop:
            checkpoints = self.run._together.checkpoints
            assert checkpoints is not None
            assert checkpoints._writer.wait(30)
            raise Stop
        (self.model(x) - y).square().mean().backward()
        if update:
            self.optimizer.step()
            self.optimizer.zero_grad()


def usual(t: Training) -> None:
    for _ in t.run.epochs(3):
        for x, y in t.loader:
            t.step(x, y)
        t.scheduler.step()


def without_epochs(t: Training) -> None:
    for _ in range(3):
        for x, y in t.loader:
            t.step(x, y)
            t.scheduler.step()


def two_phases(t: Training) -> None:
    for number in (1, 2):
        for _ in t.run.epochs(number):
            for x, y in t.loader:
                t.step(x, y)
            t.scheduler.step()


def two_loaders(t: Training) -> None:
    for _ in t.run.epochs(2):
        for (x, y), (other, _) in zip(t.loader, t.other, strict=True):
            t.step(x + other, y)
        t.scheduler.step()


def evaluating(t: Training) -> None:
    for _ in t.run.epochs(2):
        for number, (x, y) in enumerate(t.loader):
            if number == 0:  # of what is left, after going on; it draws nothing
                with torch.no_grad():
                    assert sum(len(a) for a, _ in t.other) > 0
            t.step(x, y)
        t.scheduler.step()


def accumulating(t: Training) -> None:
    for _ in t.run.epochs(2):
        for x, y in t.loader:
            with t.run.accumulate():
                t.step(x[:1], y[:1], update=False)
            t.step(x, y)


def several_passes(t: Training) -> None:
    for _ in t.run.epochs(2):
        for _ in range(2):
            for x, y in t.loader:
                t.step(x, y)


SHAPES: dict[str, Callable[[Training], None]] = {
    f.__name__: f for f in (usual, without_epochs, two_phases, two_loaders, evaluating, accumulating, several_passes)
}


def results(size: int, place: Path, stop: int | None, resume: bool) -> Result:
    """What every shape comes to, one run after the other."""

    def body(world: WorkerWorld) -> Result:
        found: Result = {}
        for shape in SHAPES:
            found |= one(world, shape)
        return found

    def one(world: WorkerWorld, shape: str) -> Result:
        kept = place / shape
        interval = "off" if stop is None else "4steps"  # so that keeping is seen to change nothing, either
        run = world.start(name=shape, checkpoint=interval, resume=newest(kept, shape)[0] if resume else None)
        training = Training(run, stop)
        try:
            SHAPES[shape](training)
        except Stop:
            world.group.gather(b"")
            if run.is_main:
                shutil.copytree(run.dir / "checkpoints", kept / "checkpoints")
            world.group.gather(b"")
            return {}
        found = {f"{shape} {name}": tensor.clone() for name, tensor in training.model.state_dict().items()}
        rate = torch.tensor(training.scheduler.get_last_lr())
        return found | {f"{shape} steps": torch.tensor(run.step), f"{shape} lr": rate}

    return run_world(size, body)[0]


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_going_on_changes_nothing(size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = results(size, Path(folder), None, resume=False)
        assert results(size, Path(folder), 9, resume=False) == {}
        again = results(size, Path(folder), None, resume=True)
    assert again.keys() == whole.keys()
    assert {name.split()[0] for name in whole} == SHAPES.keys()
    for name in whole:
        assert torch.equal(again[name], whole[name]), name
