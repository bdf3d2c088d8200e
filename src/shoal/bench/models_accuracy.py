"""How often a model is right after a short training: plain PyTorch in this process, the same on any number of cores."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from shoal.bench.models_load import ModelEntry

BATCH = 32


def train(entry: ModelEntry, model: nn.Module, data: Dataset[Any], epochs: int) -> None:
    """With the entry's own optimizers and step."""
    optimizers = entry.optimizers(model)
    # A generator of its own, so that the order does not depend on what the model draws.
    order = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for batch in DataLoader(data, batch_size=BATCH, shuffle=True, generator=order):
            entry.step(model, optimizers, batch)


def top1(model: nn.Module, data: Dataset[Any]) -> float:
    """The share of targets that have the highest score."""
    right = seen = 0
    with torch.inference_mode():
        for *inputs, target in DataLoader(data, batch_size=250):
            right += int((model(*inputs).argmax(-1) == target).sum())
            seen += target.numel()
    return right / seen


def accuracy_after(
    entry: ModelEntry, model: nn.Module, *, epochs: int, limit: int | None, folder: Path | None
) -> float | None:
    """Trains `model`, then tests it; None where there are no classes. A limit is on training alone if data are real."""
    if entry.kind != "classifier":
        return None
    train(entry, model, entry.data("train", limit, folder), epochs)
    model.eval()
    return top1(model, entry.data("test", None if folder else limit, folder))
