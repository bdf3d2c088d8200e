"""Slow links, and layers that take their time without a processor: what overlaps can then be told on a busy machine.

A link is throttled by the token bucket of `shoal run --bandwidth`. Every layer has a bucket of its own.
"""

import dataclasses
import os
import time
from itertools import pairwise
from typing import Any

import torch
from by_links import by_files
from torch import Tensor, nn

from shoal.core.clock import now
from shoal.groups.links import LinkedGroup
from shoal.sync.lockstep.lockstep import LockstepSynchronizer
from shoal.sync.lockstep.needed import NeededOrderSynchronizer
from shoal.testing.world import WorkerWorld
from shoal.transport.rate_limit import BANDWIDTH_VARIABLE

WIDTH = 256
LAYER = 4 * WIDTH * WIDTH
"""Bytes of a layer, and of a bucket."""


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, before: float, after: float) -> Tensor:
        ctx.gradient, ctx.seconds = torch.full_like(weight, 1e-3), after
        time.sleep(before)
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        time.sleep(ctx.seconds)
        return gradients[0], ctx.gradient, None, None


class Sleeping(nn.Linear):
    """A layer that does nothing for so many seconds, forward and backward."""

    def __init__(self, forward: float, backward: float) -> None:
        super().__init__(WIDTH, WIDTH, bias=False)
        self.seconds = (forward, backward)

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = _Sleep.apply(hidden, self.weight, *self.seconds)  # type: ignore[no-untyped-call]
        return found


def layers(count: int, forward: float = 0.0, backward: float = 0.0) -> nn.Module:
    return nn.Sequential(*[Sleeping(forward, backward) for _ in range(count)])


def throttled(world: WorkerWorld, rate: str, group_of: Any = by_files) -> WorkerWorld:
    """The same workers over links of this rate, with a bucket for every layer."""
    os.environ[BANDWIDTH_VARIABLE] = rate
    LockstepSynchronizer.capacity = NeededOrderSynchronizer.capacity = LAYER  # in this worker's process alone
    group = group_of(world)
    assert isinstance(group, LinkedGroup)
    return dataclasses.replace(world, group=group)


class Trainee:
    """A model under a plan, one of several that take turns in the same workers."""

    def __init__(self, world: WorkerWorld, plan: str, model: nn.Module, name: str) -> None:
        self.run = world.start(plan, name=name, checkpoint="off")
        self.model, self.optimizer = self.run.join(model, torch.optim.SGD(model.parameters(), lr=1e-3))
        self.inputs = torch.ones(1, WIDTH, requires_grad=True)

    def turn(self, steps: int) -> list[float]:
        """Seconds of each step but the first, from the end of one to the end of the next; the last one is settled."""
        moments = []
        for _ in range(steps + 1):
            self.model(self.inputs).mean().backward()
            self.optimizer.step()
            moments.append(now())
            self.optimizer.zero_grad()
        self.run._together.settle()
        return [b - a for a, b in pairwise(moments)]
