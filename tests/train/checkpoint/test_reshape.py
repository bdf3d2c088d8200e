"""Saved on N workers, loaded on M: parameters, buffers and optimizers are the same to the bit."""

import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.checkpoint.manifest import newest
from shoal.train.run import Run

STEPS = 3
WHOLE = 8 * 7 * 5 * 3
"""Samples: more than `STEPS` steps of any number of workers."""


def make() -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 3).bfloat16().float())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)


def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> Result:
    found = {f"model.{name}": tensor.clone() for name, tensor in model.state_dict().items()}
    for index, values in optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{index}.{name}": tensor.clone() for name, tensor in values.items()}
    found["lr"] = torch.tensor(optimizer.param_groups[0]["lr"], dtype=torch.float64)
    return found


def train(run: Run, steps: int) -> Result:
    model, optimizer, scheduler = make()
    data = TensorDataset(torch.arange(WHOLE), torch.randn(WHOLE, 4, generator=torch.Generator().manual_seed(2)))
    model, optimizer, loader = run.join(model, optimizer, DataLoader(data, 1, shuffle=True))
    for _ in run.epochs(1):
        for number, (_, x) in enumerate(loader):
            if number == steps:  # the step before is complete, and kept
                break
            model(x.repeat(2, 1)).square().mean().backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        return state(model, optimizer)
    return {}


def saved(size: int, place: Path) -> Result:
    """Train a few steps on `size` workers, with a checkpoint after them in `place`."""

    def body(world: WorkerWorld) -> Result:
        run = world.start(checkpoint=f"{STEPS}steps")
        result = train(run, STEPS)
        assert run._together.checkpoints is not None
        run.close()
        world.group.gather(b"")
        if run.is_main:
            shutil.copytree(run.dir / "checkpoints", place / "checkpoints")
        return result

    results = run_world(size, body)
    assert all(torch.equal(results[0][name], one[name]) for one in results for name in one)
    return results[0]


def loaded(size: int, place: Path) -> list[Result]:
    def body(world: WorkerWorld) -> Result:
        folder, _ = newest(place, "run")
        run = world.start(resume=folder)
        model, optimizer, scheduler = make()
        assert run.step == STEPS
        model, optimizer = run.join(model, optimizer)
        run._together.dealing.continued()
        assert scheduler.last_epoch == STEPS
        return state(model, optimizer)

    return run_world(size, body)


AFTER = {1: (2,), 3: (1, 5), 8: (3,)}
"""Workers that save, and those that load: more and fewer, none a multiple of the other but for one."""


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.soak)])
@pytest.mark.parametrize("before", AFTER)
def test_any_number_of_workers_loads_what_any_other_saved(before: int, every: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = saved(before, Path(folder))
        for after in range(1, 9) if every else AFTER[before]:
            for result in loaded(after, Path(folder)):
                assert result.keys() == whole.keys()
                assert all(torch.equal(result[name], whole[name]) for name in whole), (before, after)
