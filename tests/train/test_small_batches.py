"""Row 41 of docs/systems.toml: eight replicas of small batches, kept together by a central average, need fewer passes.

Both train the same 8,000 samples of MNIST in each pass, on eight workers with the same perceptron. Synchronous SGD
takes the best of four learning rates, model averaging the smallest of them alone.
"""

import sys
from pathlib import Path

import pytest
import torch
from equal_samples import DATA
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from shoal.testing.world import Result, WorkerWorld, run_world

pytestmark = [pytest.mark.soak("mnist"), pytest.mark.timeout(1100)]
WORKERS, SAMPLES, TARGET, MOST = 8, 8000, 0.93, 20
RATES = (0.1, 0.2, 0.4, 0.8)
SMALL, LARGE = 8, 64
"""Samples of a worker in a step."""


def read_mnist(part: str, samples: int) -> TensorDataset:
    sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
    from mnist import mnist

    return mnist(DATA / "mnist", part, samples)


def passes_to_target(plan: str, batch: int, rate: float) -> int:
    """Passes over the data until the test accuracy is reached; one more than the most if it is not."""
    train, test = read_mnist("train", SAMPLES), read_mnist("test", 5000)
    images, labels = test.tensors

    def body(world: WorkerWorld) -> Result:
        run = world.start(plan, checkpoint="off")
        torch.manual_seed(5)
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        model, optimizer, loader = run.join(model, optimizer, DataLoader(train, batch_size=batch, shuffle=True))
        for epoch in run.epochs(MOST):
            for x, y in loader:
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
            with torch.no_grad():
                accuracy = float((model(images).argmax(1) == labels).float().mean())
            if accuracy >= TARGET:
                return {"passes": torch.tensor(epoch + 1)}
        return {"passes": torch.tensor(MOST + 1)}

    return int(run_world(WORKERS, body, seconds=300)[0]["passes"])


@pytest.mark.skipif(not (DATA / "mnist").is_dir(), reason="set SHOAL_DATA to a folder that holds mnist/")
def test_small_batches_under_model_averaging_need_fewer_passes_than_large_ones_under_synchronous_sgd() -> None:
    averaging = passes_to_target("crossbow", SMALL, RATES[0])
    synchronous = {rate: passes_to_target("bsp", LARGE, rate) for rate in RATES}
    assert averaging < min(synchronous.values()), (averaging, synchronous)
