"""A model that is trained by nobody else, joined without a run."""

import contextlib
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from shoal.train.joined import JoinedModels


class Side:
    """A model that is trained by nobody else."""

    def __init__(self, size: int, seed: int, joined: Any) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(size, size), nn.BatchNorm1d(size))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.joined: JoinedModels = joined(self.model, self.optimizer)

    def step(self, share: float = 0.001) -> None:
        for parameter in self.model.parameters():
            parameter.grad = torch.randn_like(parameter).masked_fill(torch.rand_like(parameter) >= share, 0.0)
        self.optimizer.step()


class Members:
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.models, self.optimizers, self.stateful = [model], [optimizer], []
        self.names = [name for name, _ in model.named_parameters()]
        self.parameters = list(model.parameters())


class Bare(JoinedModels):
    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.members = Members(model, optimizer)  # type: ignore[assignment]
        self.deferred, self.precision, self.alone, self.lockstep = None, {}, False, True
        self.synchronizer = SimpleNamespace(spent=SimpleNamespace(wait=0.0))  # type: ignore[assignment]

    def suppress_steps(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()
