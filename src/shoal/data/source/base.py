"""The contract of a source, and where it stands among the workers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.data.deal import Counts
from shoal.data.turn import Turn

Step = tuple[Counts, Any]
"""Samples of every worker in this step, and this worker's batch: None where its count is 0."""


@dataclass(frozen=True, slots=True)
class Place:
    """This worker among all."""

    rank: int
    size: int


class Source(Protocol):
    """Gives the steps of a pass as one worker sees them.

    Every worker gets the same number of steps with the same counts, as a pure function of the turn; a step in
    which nobody has a sample does not occur. Iterating draws nothing from the script's global generators;
    only the user's own dataset and `collate_fn` do, if they run in this process.
    """

    def steps(self, turn: Turn) -> Iterator[Step]:
        """The steps of one pass; turns are begun one after the other, and may be left before their end."""
        ...

    def __len__(self) -> int:
        """Steps of a pass, the same on every worker; a TypeError if that is not known."""
        ...
