"""A small convolutional network and pictures of four classes that it learns in a few steps."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from shoal.train.run import Run


def pictures(count: int = 384, seed: int = 5) -> TensorDataset:
    """8x8: a bar across, a bar down, a diagonal, a ring, each somewhere, with noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=generator)
    images = 0.3 * torch.rand(count, 1, 8, 8, generator=generator)
    for image, label in zip(images[:, 0], labels.tolist(), strict=True):
        at = int(torch.randint(5, (), generator=generator))
        if label == 0:
            image[at + 1] += 0.6
        elif label == 1:
            image[:, at + 1] += 0.6
        elif label == 2:
            image += 0.6 * torch.diag(torch.ones(8 - abs(at - 2)), at - 2)
        else:
            image[at : at + 3, at : at + 3] += 0.6
            image[at + 1, at + 1] -= 0.6
    return TensorDataset(images, labels)


def network(seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Linear(32, 4),
    )


def learn(run: Run, epochs: int = 4, lr: float = 0.1, batch: int = 16) -> tuple[nn.Module, float]:
    """Train it; the model, and its accuracy on pictures it has not seen."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    loader = DataLoader(pictures(), batch_size=batch // run.size, shuffle=True)
    model, optimizer, loader = run.join(model, optimizer, loader)
    for _ in run.epochs(epochs):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model, accuracy(model)


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    images, labels = pictures(512, seed=6).tensors
    right: Tensor = model(images).argmax(1) == labels
    return float(right.float().mean())
