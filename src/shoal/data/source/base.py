"""The contract of a source, and where it stands among the workers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from shoal.data.allocate.base import SampleLease
from shoal.data.allocate.leased import LeaseQueue
from shoal.data.deal import Counts, Shares, part
from shoal.data.remaining import FRESH, Left, Ranges
from shoal.data.turn import PassKey


class LoaderStep(NamedTuple):
    """One step of a pass."""

    counts: Counts
    """Samples of every worker."""
    batch: Any
    """This worker's; None where its count is 0."""
    ranges: Ranges
    """Positions in the global order that all workers take together."""
    stream: int = 0
    """Whose order: an iterable dataset has one for each process that reads it."""
    whole_batches: bool = False
    """Whether a position is a batch, one for each worker, instead of a sample."""
    lease: SampleLease | None = None
    """Where samples are leased: this worker's, who alone has this step."""

    def positions_of(self, rank: int) -> list[int]:
        """Positions that one worker was dealt."""
        positions = [position for begin, end in self.ranges for position in range(begin, end)]
        return positions[rank : rank + 1] if self.whole_batches else positions[part(self.counts, rank)]


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """This worker among all."""

    rank: int
    size: int
    shares: Shares = ()
    """How much of every step each worker takes; empty: all the same. Whole batches are dealt one to each anyway."""


class BatchSource(Protocol):
    """Gives the steps of a pass as one worker sees them.

    Every worker gets the same number of steps with the same counts, as a pure function of the turn; a step in
    which nobody has a sample does not occur. Iterating draws nothing from the script's global generators;
    only the user's own dataset and `collate_fn` do, if they run in this process.
    """

    def steps(self, turn: PassKey, left: Left = FRESH, leases: LeaseQueue | None = None) -> Iterator[LoaderStep]:
        """The steps of one pass, or of what is `left` of it; turns are begun one after the other, and may be left
        before their end. With `leases`, those that this worker leases; see `lease_batch`."""
        ...

    @property
    def lease_batch(self) -> int | None:
        """Samples of a lease; None where samples cannot be leased."""
        ...

    @property
    def items(self) -> int | None:
        """Positions of a pass: samples, or batches where whole ones are dealt; None if that is not known."""
        ...

    @property
    def drops(self) -> int:
        """Positions at the end of a pass that may be dropped are fewer than this; 0: none are."""
        ...

    def names(self, turn: PassKey, places: Iterable[int]) -> list[Any]:
        """Return the dataset's own indices of the samples at `places`; empty if only positions are known."""
        ...

    def __len__(self) -> int:
        """Steps of a pass, the same on every worker; a TypeError if that is not known."""
        ...
