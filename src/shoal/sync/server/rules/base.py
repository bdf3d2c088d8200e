"""The contract of a server rule: what an update makes of the values of a shard.

    apply(values, slots, update, count)    values and slots change in place; `count` updates were applied before

A rule is arithmetic on flat float32 arrays and keeps nothing itself: what it carries from update to update lies in
`slots`, which a shard saves and replays with its values. Element i depends on element i alone, so shards may be cut
anywhere.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]


class ServerRule(ABC):
    """Called by one thread at a time, for one shard."""

    slots: int = 0
    """Arrays of the shard's size that it carries from update to update; zeros in the beginning."""
    takes_deltas: bool = False
    """Whether an update is a change of the values, made by the worker's own optimizer; else it is a gradient."""
    zero_changes_nothing: bool = False
    """Whether an element stays as it is where the update is 0."""
    needs_rounds: bool = False
    """Whether it makes sense only where the updates of all members are applied together."""

    @abstractmethod
    def apply(self, values: FloatArray, slots: list[FloatArray], update: FloatArray, count: int) -> None:
        """Change `values` and `slots` in place; `update` may not be written to."""


def as_float32(number: float) -> Any:
    """Return a scalar that leaves float32 arithmetic in float32, whatever the version of numpy."""
    return np.float32(number)
