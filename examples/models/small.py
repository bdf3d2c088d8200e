"""The small ones: a multi-layer perceptron, an LSTM that reads an image row by row, and an autoencoder."""

import torch.nn.functional as F
from torch import Tensor, nn


def mlp(width: int = 128) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


class LSTM(nn.Module):
    """28 steps of 28 pixels; the last state names the class."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.cells, self.head = nn.LSTM(28, width, batch_first=True), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.cells(x.squeeze(1))
        return self.head(states[:, -1])


def autoencoder(width: int = 128) -> nn.Module:
    """784 pixels through a neck of an eighth of the width, and back."""
    neck = width // 8 or 1
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, neck),
        nn.Linear(neck, width), nn.ReLU(), nn.Linear(width, 784), nn.Unflatten(1, (1, 28, 28)),
    )  # fmt: skip


def classify(model: nn.Module, *batch: Tensor) -> Tensor:
    """Cross entropy of the last dimension; a text has a target at every place."""
    *inputs, target = batch
    return F.cross_entropy(model(*inputs).flatten(0, -2), target.flatten())


def reconstruct(model: nn.Module, image: Tensor, _label: Tensor) -> Tensor:
    return F.mse_loss(model(image), image)
