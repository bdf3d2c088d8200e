"""Weights in fixed point: after every update each is rounded to a multiple of 2^-frac that fits into `bits` bits.

Gupta et al., "Deep Learning with Limited Numerical Precision", ICML 2015: rounded at random, 16 bits train like
float32, for a small update moves a weight with a small chance; rounded to the nearest it is lost. Do not use it where
weights grow beyond 2^(bits - frac - 1): they stay at the largest number there is.

    p = 2^-frac * clamp(round(2^frac * p))        what the optimizer keeps beside the weights (momentum) stays as it is
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from shoal.plan.precision import WeightsTerm
from shoal.train.precision.base import ModelPrecision
from shoal.train.precision.rounding import noise, whole


class FixedPoint(ModelPrecision):
    """All that the optimizers train, on one grid; from the moment it is joined."""

    def __init__(self, term: WeightsTerm, optimizers: Sequence[Optimizer], seed: int) -> None:
        self.term, self.seed = term, seed
        self._count = torch.zeros((), dtype=torch.int64)
        for optimizer in optimizers:
            self._round(optimizer)
            optimizer.register_step_post_hook(self._round)

    def state(self) -> dict[str, Tensor]:
        return {"count": self._count}

    @torch.no_grad()
    def _round(self, optimizer: Optimizer, *_: Any) -> None:
        trained = [p for group in optimizer.param_groups for p in group["params"] if p.is_floating_point()]
        for index, parameter in enumerate(trained):
            parameter.copy_(self._fixed(parameter, index))
        # the next update draws other noise; checkpoints hold the count
        self._count += 1

    def _fixed(self, values: Tensor, index: int) -> Tensor:
        term, half = self.term, 1 << (self.term.bits - 1)
        scaled = (values.double() if values.dtype is torch.float64 else values.float()) * 2.0**term.frac
        stochastic = term.rounding == "stochastic"
        uniform = noise(scaled, self.seed, int(self._count), index) if stochastic else None
        return whole(scaled, uniform).clamp_(-half, half - 1).mul_(2.0**-term.frac)
