"""A small convolutional network on the 8x8 digits that scikit-learn carries: nothing to download.

    python examples/digits.py
    shoal run --workers 2 examples/digits.py --epochs 5

Shoal asks a script for `start` and `join`; `epochs`, `log` and `report` make its record.
The rest is plain PyTorch.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import shoal


def digits() -> tuple[TensorDataset, TensorDataset]:
    """1797 images of 8x8 in [0, 1], split 80/20 in the same way on every worker."""
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(bunch.target, dtype=torch.long)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    cut = len(order) * 8 // 10
    train, test = order[:cut], order[cut:]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def network(hidden: int = 64) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )


@torch.no_grad()
def evaluate(model: nn.Module, data: Dataset, device: torch.device) -> float:
    """The share of `data` that the model names correctly."""
    model.eval()
    right = seen = 0
    for x, y in DataLoader(data, batch_size=256):
        right += (model(x.to(device)).argmax(1) == y.to(device)).sum().item()
        seen += len(y)
    model.train()
    return right / seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="samples per worker and step")
    parser.add_argument("--hidden", type=int, default=64, help="width of the layer that holds most parameters")
    parser.add_argument("--lr", type=float, default=5e-3)
    args = parser.parse_args()

    run = shoal.start()
    train, test = digits()
    model = network(args.hidden).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loader = DataLoader(train, batch_size=args.batch, shuffle=True)
    model, optimizer, loader = run.join(model, optimizer, loader)

    for epoch in run.epochs(args.epochs):
        for x, y in loader:
            loss = F.cross_entropy(model(x.to(run.device)), y.to(run.device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss)
        accuracy = evaluate(model, test, run.device)
        run.report(accuracy=accuracy)
        if run.is_main:
            print(f"epoch {epoch}: accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
