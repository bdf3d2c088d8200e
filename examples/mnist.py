"""A small convolutional network on MNIST, read from its four gzip files.

    python examples/mnist.py --data DIR
    shoal run --workers 2 examples/mnist.py --data DIR --epochs 2

DIR holds train-images-idx3-ubyte.gz and its three companions.
"""

import argparse
import gzip
import os
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import shoal

FILES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}


def read_idx(path: Path) -> np.ndarray:
    """An idx file: two zero bytes, the type (8 = bytes), the number of dimensions, their sizes, values."""
    raw = gzip.decompress(path.read_bytes())
    if raw[:3] != b"\0\0\x08":
        raise ValueError(f"{path} starts with {raw[:3]!r}, which is not an idx file of bytes; fetch it again")
    shape = np.frombuffer(raw, dtype=">i4", count=raw[3], offset=4)
    return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def mnist(folder: Path, part: str, limit: int | None = None) -> TensorDataset:
    images, labels = (read_idx(folder / name)[:limit] for name in FILES[part])
    # The training set's own mean and deviation, as everybody uses them.
    x = (torch.from_numpy(images.astype(np.float32)).unsqueeze(1) / 255 - 0.1307) / 0.3081
    return TensorDataset(x, torch.from_numpy(labels.astype(np.int64)))


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


@torch.no_grad()
def evaluate(model: nn.Module, data: Dataset, device: torch.device) -> float:
    """The share of `data` that the model names correctly."""
    model.eval()
    right = seen = 0
    for x, y in DataLoader(data, batch_size=500):
        right += (model(x.to(device)).argmax(1) == y.to(device)).sum().item()
        seen += len(y)
    model.train()
    return right / seen


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(os.environ.get("SHOAL_DATA", "data")) / "mnist"
    parser.add_argument("--data", type=Path, default=default, help="folder of the files; $SHOAL_DATA/mnist")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="samples per worker and step")
    parser.add_argument("--lr", type=float, default=2e-3, help="of epoch 0; every later one has a fifth of it")
    parser.add_argument("--limit", type=int, help="train on the first LIMIT samples only")
    args = parser.parse_args()
    for name in (name for pair in FILES.values() for name in pair):
        if not (args.data / name).is_file():
            parser.error(f"no {name} in {args.data}; give its folder: --data DIR, or $SHOAL_DATA")
    return args


def main() -> None:
    args = arguments()
    run = shoal.start()
    train, test = mnist(args.data, "train", args.limit), mnist(args.data, "test")
    model = network().to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loader = DataLoader(train, batch_size=args.batch, shuffle=True)
    model, optimizer, loader = run.join(model, optimizer, loader)
    # Once an epoch: in the last step of one, a worker may be left without samples and so not reach its loop.
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.2)

    for epoch in run.epochs(args.epochs):
        for x, y in loader:
            loss = F.cross_entropy(model(x.to(run.device)), y.to(run.device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss)
        schedule.step()
        accuracy = evaluate(model, test, run.device)
        run.report(accuracy=accuracy)
        if run.is_main:
            print(f"epoch {epoch}: accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
