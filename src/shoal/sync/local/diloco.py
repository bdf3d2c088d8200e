"""Outer Nesterov momentum on the pseudo-gradient: DiLoCo.

    momentum = m * momentum + change;    anchor = anchor + rate * (change + m * momentum)

Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023: AdamW inside, rounds of
hundreds of steps, rate 0.7 and momentum 0.9 outside. The pseudo-gradient is the change with its sign turned, so this is
torch's SGD(nesterov=True). Do not use these defaults with rounds of a few steps of plain SGD at a high learning rate:
the outer momentum then multiplies a step that is large already; use `average` there.
"""

from torch import Tensor

from shoal.sync.local.outer import OuterOptimizer


class NesterovOuter(OuterOptimizer):
    """With rate 1 and momentum 0 it is the plain mean."""

    remembers = True

    def __init__(self, rate: float = 0.7, momentum: float = 0.9) -> None:
        self.rate, self.momentum = rate, momentum

    def step(self, anchor: Tensor, change: Tensor, momentum: Tensor | None, workers: int) -> Tensor:
        assert momentum is not None
        momentum.mul_(self.momentum).add_(change)
        return anchor + (change + self.momentum * momentum).mul_(self.rate)
