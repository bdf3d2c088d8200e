"""A run in few bits goes on from a checkpoint as if nothing had happened, with workers short of samples in between."""

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

PLANS = {
    "weights": ("weights(bits=12, frac=8)", 2),
    "dorefa": ("dorefa(w=2, a=32, g=4)", 1),  # the noise of codecs is counted from where a run goes on
    "halp": ("halp(bits=8, mu=1.0, anchor=3, inner=4)", 2),
}
STOP, END = 8, 11
"""Steps: 17 samples in steps of 4 make 5 an epoch, the last of each with one sample for two workers."""


def train(run: Run, steps: int) -> Result:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    data = TensorDataset(torch.randn(17, 4), torch.randn(17, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    model, optimizer, loader = run.join(model, optimizer, DataLoader(data, 4 // run.size, shuffle=True))
    for _ in run.epochs(3):
        for x, y in loader:
            if run.step == steps:
                break
            (model(x) - y).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        if run.step == steps:
            break
    kept = {f"kept.{name}": tensor.clone() for name, tensor in run._together.joined[0].kept().items()}
    return {**kept, **{name: p.detach().clone() for name, p in model.named_parameters()}}


@pytest.mark.parametrize("name", PLANS)
def test_a_continued_run_ends_where_one_without_a_break_ends(name: str) -> None:
    plan, workers = PLANS[name]

    def whole(world: WorkerWorld) -> Result:
        return train(world.start(plan, checkpoint="off"), END)

    def begun(world: WorkerWorld) -> Result:
        run = world.start(plan, checkpoint=f"{STOP}steps")
        result = train(run, STOP)
        run.close()
        world.group.gather(b"")
        if run.is_main:
            shutil.copytree(run.dir / "checkpoints", place / "checkpoints")
        return result

    def continued(world: WorkerWorld) -> Result:
        folder, _ = newest(place, "run")
        return train(world.start(plan, resume=folder), END)

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        expected = run_world(workers, whole)
        run_world(workers, begun)
        found = run_world(workers, continued)
    for one in (*expected, *found):
        assert one.keys() == expected[0].keys()
        assert len([kind for kind in one if kind.startswith("kept.")]) >= 1
        for kind, tensor in one.items():
            assert torch.equal(tensor, expected[0][kind]), kind
