"""Synchronous model averaging: small-batch replicas, each corrected towards a central average model with momentum.

    correction_i = alpha * (x_i - centre);    x_i = x_i - correction_i
    centre = centre + sum of the corrections + m * (centre - centre of the round before)

Koliousis et al., "CROSSBOW: Scaling Deep Learning with Small Batch Sizes on Multi-GPU Servers", VLDB 2019, algorithm 1,
with alpha = 1 / p and m = 0.9 unless the plan says otherwise; here a correction is made after the steps of its round,
from what they came to. Replicas begin anew from the centre at the end of a pass, as theirs do when the learning rate
changes. Do not use it for one large batch over a slow network: its gain is in many replicas of small batches, and it
sends the parameters as often as `every(1)` sends gradients if a round is one step.
"""

from torch import Tensor

from shoal.sync.local.outer import OuterOptimizer


class ModelAveragingOuter(OuterOptimizer):
    """`alpha` None: 1 / p for p workers in the round. `momentum`: of the centre; what it remembers is its last move."""

    elastic = True
    remembers = True

    def __init__(self, alpha: float | None = None, momentum: float = 0.9) -> None:
        self.alpha, self.momentum = alpha, momentum

    def pull(self, workers: int) -> float:
        return 1.0 / workers if self.alpha is None else self.alpha

    def step(self, anchor: Tensor, change: Tensor, momentum: Tensor | None, workers: int) -> Tensor:
        assert momentum is not None
        momentum.mul_(self.momentum).add_(change, alpha=self.pull(workers) * workers)
        return anchor + momentum
