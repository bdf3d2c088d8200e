"""The contract of an allocator: it cuts the rest of a pass into batches, and assigns some to this worker.

    static    arithmetic on ranks and shares; the same on all workers, no message
    leased    ranges from the coordinator's book; a fast worker takes more

Whatever allocates, a sample is trained once in a pass: what a lost worker had comes back into the pool.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from shoal.data.deal import Counts, Read
from shoal.data.remaining import Ranges, RemainingSamples


class SampleLease(NamedTuple):
    """Samples that this worker alone was given."""

    ranges: Ranges
    due: int
    """The round it counts in, numbered since the pass was opened here."""


class AllocatedBatch(NamedTuple):
    """One step of a pass as one worker sees it."""

    counts: Counts
    """Samples of every worker; of a lease, those of this worker and 0."""
    items: Any
    """This worker's."""
    ranges: Ranges
    """Positions that `counts` are taken from."""
    lease: SampleLease | None = None


class SampleAllocator(Protocol):
    """Used by the training thread. A batch counts once the run's ledger commits its step or round."""

    def allocate(self, read: Read[Any], left: RemainingSamples) -> Iterator[AllocatedBatch]:
        """The batches of what is `left`; `read` gives the items of the pass in its global order, from the first."""
        ...
