"""The contract of an outer optimizer: what the parameters of all replicas become at the end of a round.

    anchor     the parameters all replicas had when the round began
    change     the mean over the workers of what their own steps made of them, minus the anchor
    step       returns the next anchor, which all replicas go on from

Pure arithmetic on tensors that are the same on all workers, so its result is too. What it remembers is named after the
parameters, the same on all workers, and kept in checkpoints.
"""

from abc import ABC, abstractmethod

from torch import Tensor


class OuterOptimizer(ABC):
    """Of one part; called by the training thread."""

    remembers: bool = False
    """Whether it keeps a tensor for each parameter from round to round: its momentum."""

    @abstractmethod
    def step(self, anchor: Tensor, change: Tensor, momentum: Tensor | None, workers: int) -> Tensor:
        """Return the next anchor; `momentum` is updated in place. Neither `anchor` nor `change` may be written to."""
