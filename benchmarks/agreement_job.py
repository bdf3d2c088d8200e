"""The training of `agreement.py`: the network of examples/mnist.py by plain SGD, on the same samples in every step.

    agreement_job.py FOLDER SAMPLES RATE PAUSE
    agreement_job.py digits SAMPLES RATE PAUSE            that of examples/digits.py, on all of its samples

PAUSE: seconds that each step takes more, and four times as many on the last worker: a slow machine, without its load.
"""

import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import shoal

sys.path.append(str(Path(__file__).parents[1] / "examples"))
import digits
import mnist

BATCH = 32


def task(folder: Path, samples: int) -> tuple[nn.Module, Dataset, Dataset, int]:
    """The network, the samples to train and to test on, and the passes."""
    if folder == Path("digits"):
        return digits.network(), *digits.digits(), 10
    return mnist.network(), mnist.mnist(folder, "train", samples), mnist.mnist(folder, "test", 5000), 2


def main() -> None:
    folder, samples, rate, pause = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])
    run = shoal.start()
    pause *= 4 if run.rank == run.size - 1 else 1
    torch.manual_seed(5)
    model, train, test, epochs = task(folder, samples)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    loader = DataLoader(train, batch_size=BATCH // run.size, shuffle=True)
    model, optimizer, loader = run.join(model, optimizer, loader)
    for _ in run.epochs(epochs):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(pause)
        run.report(accuracy=mnist.evaluate(model, test, torch.device("cpu")))


if __name__ == "__main__":
    main()
