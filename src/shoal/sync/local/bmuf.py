"""Blockwise model-update filtering: the mean change of a round goes through a momentum of its own.

    momentum = m * momentum + rate * change;    anchor = anchor + momentum

Chen & Huo, "Scalable training of deep learning machines by incremental block training with intra-block parallel
optimization and blockwise model-update filtering", ICASSP 2016: classic block momentum, with m = 1 - 1/p unless the
plan says otherwise. Their Nesterov form is the arithmetic of `diloco` with rate 1 and the same m. Do not use it in runs
of a few rounds: its momentum needs about p rounds to build up and overshoots when training ends right after.
"""

from torch import Tensor

from shoal.sync.local.outer import OuterOptimizer


class BlockMomentumOuter(OuterOptimizer):
    """`momentum` None: 1 - 1/p for p workers in the round."""

    remembers = True

    def __init__(self, rate: float = 1.0, momentum: float | None = None) -> None:
        self.rate, self.momentum = rate, momentum

    def step(self, anchor: Tensor, change: Tensor, momentum: Tensor | None, workers: int) -> Tensor:
        assert momentum is not None
        share = 1.0 - 1.0 / workers if self.momentum is None else self.momentum
        momentum.mul_(share).add_(change, alpha=self.rate)
        return anchor + momentum
