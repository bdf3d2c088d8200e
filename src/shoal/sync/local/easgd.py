"""Elastic averaging: replicas keep parameters of their own and are pulled towards a centre, which is pulled to them.

    correction_i = alpha * (x_i - centre);    x_i = x_i - correction_i;    centre = centre + sum of the corrections

Zhang, Choromanska & LeCun, "Deep learning with Elastic Averaging SGD", NeurIPS 2015: the synchronous form, all
corrections from the centre as it was. alpha = 0.9 / p unless the plan says otherwise (their beta = p * alpha = 0.9);
above 1 / p the centre overshoots the mean of the replicas. Do not use it where replicas must be one model at every
round, or with few rounds: the centre follows the replicas with a delay.
"""

from torch import Tensor

from shoal.sync.local.outer import OuterOptimizer

BETA = 0.9


class ElasticAveragingOuter(OuterOptimizer):
    """`alpha` None: 0.9 / p for p workers in the round."""

    elastic = True

    def __init__(self, alpha: float | None = None) -> None:
        self.alpha = alpha

    def pull(self, workers: int) -> float:
        return BETA / workers if self.alpha is None else self.alpha

    def step(self, anchor: Tensor, change: Tensor, momentum: Tensor | None, workers: int) -> Tensor:
        return anchor + change * (self.pull(workers) * workers)
