"""The contract of an outer optimizer: what the parameters of all replicas become at the end of a round.

    anchor     what all workers agreed on at the end of the last round
    change     the mean over the workers of what they hold now, minus the anchor
    step       returns the next anchor

All replicas go on from the next anchor, unless the optimizer is `elastic`: then the anchor is a centre, each replica
keeps parameters of its own, and `pull` says how far it goes back towards the centre as it was.

Pure arithmetic on tensors that are the same on all workers, so its result is too. What it remembers is named after the
parameters, the same on all workers, and kept in checkpoints.
"""

from abc import ABC, abstractmethod

from torch import Tensor


class OuterOptimizer(ABC):
    """Of one part; called by the training thread."""

    remembers: bool = False
    """Whether it keeps a tensor for each parameter from round to round: its momentum."""
    elastic: bool = False
    """Whether replicas stay different after a round. Then the centre moves by the sum of their corrections."""

    @abstractmethod
    def step(self, anchor: Tensor, change: Tensor, momentum: Tensor | None, workers: int) -> Tensor:
        """Return the next anchor; `momentum` is updated in place. Neither `anchor` nor `change` may be written to."""

    def pull(self, workers: int) -> float:
        """What part of its distance to the centre a replica goes back; asked of elastic ones only."""
        return 1.0
