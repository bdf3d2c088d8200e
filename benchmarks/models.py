"""The three models of the step benchmark, each with one fixed batch: name -> (make, loss)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Case = tuple[nn.Module, Callable[[nn.Module], Tensor]]


def mlp() -> Case:
    """784-1024-1024-10 at batch 128: 1.9 M parameters, little computing per byte of gradient."""
    model = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))
    return model, _classify(torch.randn(128, 784))


def cnn() -> Case:
    """Two convolutions and two linear layers at batch 64: 0.2 M parameters, mostly computing."""
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(1568, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    return model, _classify(torch.randn(64, 1, 28, 28))


def transformer() -> Case:
    """Six blocks of width 256, context 64, batch 8: 4.8 M parameters."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.Sequential(
        nn.Embedding(65, 256), nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), nn.Linear(256, 65)
    )
    x, y = torch.randint(65, (8, 64)), torch.randint(65, (8, 64))
    return model, lambda m: F.cross_entropy(m(x).flatten(0, 1), y.flatten())


def _classify(x: Tensor) -> Callable[[nn.Module], Tensor]:
    y = torch.randint(10, (len(x),))
    return lambda model: F.cross_entropy(model(x), y)


MODELS = {"mlp": mlp, "cnn": cnn, "transformer": transformer}
