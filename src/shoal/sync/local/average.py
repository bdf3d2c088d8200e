"""Replicas become the mean of all replicas: local SGD.

McDonald et al., "Distributed training strategies for the structured perceptron", NAACL 2010; for deep networks Moritz
et al., "SparkNet", ICLR 2016; analysed by Stich, "Local SGD converges fast and communicates little", ICLR 2019. With
plain SGD and one step a round it equals synchronous SGD. Do not use it with long rounds and many workers: the mean
moves as far as one worker does, so p workers hardly train faster than one; `diloco` and `bmuf` make up for that.
"""

from torch import Tensor

from shoal.sync.local.outer import OuterOptimizer


class AverageOuter(OuterOptimizer):
    """The mean, and nothing else."""

    def step(self, anchor: Tensor, change: Tensor, momentum: Tensor | None, workers: int) -> Tensor:
        return anchor + change
