"""One pass over a loader: what is left of it, and what came back from workers that were lost."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from shoal.data.allocate.leased import LeaseQueue
from shoal.data.remaining import Range, RemainingSamples
from shoal.data.source.base import LoaderStep
from shoal.data.turn import PassKey


class PassedLoader(Protocol):
    """What a pass tells of its loader."""

    @property
    def facts(self) -> tuple[int, int | None, int]:
        """Which loader this is, how many positions a pass has, and how many its end may drop."""
        ...

    @property
    def lease_batch(self) -> int | None:
        """Samples of a lease; None where samples of this loader cannot be leased."""
        ...

    def own_places(self, step: LoaderStep) -> list[int]:
        """Positions of the samples that this worker has in a step."""
        ...

    def names(self, turn: PassKey, places: list[int]) -> list[Any]:
        """Return the dataset's own indices of the samples at `places`, if they are known."""
        ...


@dataclass
class LoaderPass:
    """One iteration over a loader while it lasts."""

    loader: PassedLoader
    turn: PassKey
    left: dict[int, RemainingSamples] = field(default_factory=dict)
    """The positions that no worker has been given yet, by stream."""
    trained: bool = False
    """Whether a step used it; a resumed run repeats passes that only looked at data."""

    changed: bool = False
    """Whether samples came back since the inner loader was started."""

    leases: LeaseQueue | None = None
    """This worker's leases; None if samples are not leased."""
    ended: bool = False
    """Whether another worker has left the pass, so that all must."""

    def give(self, step: LoaderStep) -> None:
        if self.leases is not None and step.lease is not None:
            self.leases.delivered(step.lease)
            return  # it is taken out when its round is counted
        taken = sum(end - begin for begin, end in step.ranges)
        self.left[step.stream] = self.left.get(step.stream, RemainingSamples()).take(taken)[1]

    def give_back(self, stream: int, ranges: Iterable[Range]) -> None:
        """Take back samples that a lost worker had and did not use."""
        self._put(stream, self.left[stream].give_back(ranges))

    def take_out(self, stream: int, ranges: Iterable[Range]) -> None:
        """Another worker was dealt these before its turn."""
        self._put(stream, self.left.get(stream, RemainingSamples()).take_out(ranges))

    def count_leased(self, ranges: Iterable[Range]) -> None:
        """A round has counted these."""
        self.left[0] = self.left.get(0, RemainingSamples()).take_out(ranges)

    def is_void(self, step: LoaderStep) -> bool:
        """Whether it was leased for a round that has ended, and may be another worker's now."""
        return step.lease is not None and (self.leases is None or self.leases.is_void(step.lease))

    @property
    def goes_on(self) -> bool:
        """Return whether samples are left although the inner loader has ended."""
        leased = self.leases is not None and self.leases.remains
        return (self.changed or leased) and not self.ended

    def _put(self, stream: int, rest: RemainingSamples) -> None:
        self.left[stream] = rest
        if rest == RemainingSamples():
            del self.left[stream]
        self.changed = True
