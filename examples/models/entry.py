"""What the table knows of a model, and the one training step that serves them all.

Every batch is `(*inputs, target)`, and `model(*inputs)` is the answer. A model of one part has one loss and one
optimizer; a GAN has two parts that learn in turn, each by its own loss. Both are the same loop here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

Loss = Callable[..., Tensor]
"""(model, *inputs, target) -> the mean over the samples of a batch."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One row of the table."""

    make: Callable[..., nn.Module]
    """The model; `width=` scales it, and its default is small enough for one core."""
    data: Callable[[str, int | None, Path | None], Dataset]
    """(part, limit, folder): "train" or "test", at most `limit` samples; synthetic without a folder."""
    losses: dict[str, Loss]
    """Part of the model -> its loss, in the order they learn; the part "" is the whole model."""
    kind: Literal["classifier", "autoencoder", "gan"]
    """Only a classifier has an accuracy."""
    files: tuple[str, ...] = ()
    """What a folder of real data must hold; empty where there is only synthetic data."""
    rate: float = 1e-3
    """Learning rate of AdamW that suits a short training."""
    narrow: int = 4
    """The smallest width that makes sense."""

    def optimizers(self, model: nn.Module, make: Callable[..., Optimizer] = torch.optim.AdamW, **options: Any) -> list:
        """One optimizer for each part that learns."""
        options = {"lr": self.rate} | options
        return [make(model.get_submodule(part).parameters(), **options) for part in self.losses]

    def step(self, model: nn.Module, optimizers: list[Optimizer], batch: list[Tensor]) -> Tensor:
        """Every part learns once from the batch; the sum of the losses, each as it was before its own update."""
        losses = []
        for loss_of, optimizer in zip(self.losses.values(), optimizers, strict=True):
            loss = loss_of(model, *batch)
            loss.backward()
            optimizer.step()
            model.zero_grad()  # of the other parts too: a loss may reach them on its way
            losses.append(loss.detach())
        return torch.stack(losses).sum()
