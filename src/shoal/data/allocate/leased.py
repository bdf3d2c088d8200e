"""Leased allocation: every worker asks the coordinator for its next batch, so a fast one trains more of them.

    next     the answer to the request that was made ahead; then the next request leaves, while this batch is trained
    closes   whether the script has to close the round before it gets a batch: the batch is for a later one, or another
             worker is through with its own (`fastest`)
    close    a round has counted what was trained; leases for later rounds stay
    rewind   the loader begins again, because members have changed: what it had read ahead comes first

One lease is one batch. The loader's own look-ahead (`num_workers`) holds leases too: rounds should be long compared
with it. See `membership/lease_book.py` for the other end.

Cites: Polychronopoulos & Kuck 1987, "Guided Self-Scheduling"; Li et al. 2014, "Scaling Distributed Machine Learning
with the Parameter Server" (workload pools). Avoid: among equal machines, where static dealing needs no message.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from shoal.core.clock import Deadline
from shoal.data.allocate.base import AllocatedBatch, SampleLease
from shoal.data.deal import Counts, Read
from shoal.data.remaining import Range, RemainingSamples
from shoal.membership.protocol import MOST_RANGES, HeldLease, LeaseRequest, SamplesLeased


class LeaseChannel(Protocol):
    """How requests get to the book: `membership.lease_client.LeaseClient`, or a book in the same process."""

    def say(self, request: LeaseRequest) -> None: ...

    def wait(self, request: LeaseRequest, deadline: Deadline) -> SamplesLeased: ...

    def is_closing(self, request: LeaseRequest) -> bool: ...

    def forget(self, loader: int) -> None: ...


@dataclass(frozen=True)
class LeaseTerms:
    """The leases of one pass."""

    key: tuple[int, int, int]
    """Loader, epoch, number."""
    items: int
    batch: int
    steps: int
    """Batches for each worker in a round, on average."""
    drop_last: bool = False
    fastest: bool = False
    """Whether a round ends when one worker has trained `steps` batches."""

    @property
    def least(self) -> int:
        return self.batch if self.drop_last else 1


class LeaseQueue:
    """One worker's leases in one pass, from the round that began at step `began` on."""

    def __init__(
        self, channel: LeaseChannel, member: str, terms: LeaseTerms, began: int, left: RemainingSamples, seconds: float
    ) -> None:
        self._channel, self._member, self._seconds = channel, member, seconds
        self.terms, self.ordinal = terms, 0
        """`ordinal`: rounds that were closed since."""
        self._round, self._ordinals, self._left = began, {began: 0}, left
        self._number = self._reached = self._delivered = 0
        self._out: deque[SampleLease] = deque()
        """Given to the loader, and not yet by the loader to the script."""
        self._again: deque[SampleLease] = deque()
        channel.say(self._request())  # the book waits for a report of every member

    @property
    def remains(self) -> bool:
        """Return whether the pass needs another round; the same on all workers."""
        return self._left.count(self.terms.items) >= self.terms.least

    def next(self) -> SampleLease | None:
        """Return the next batch; None if all that is left is leased to others."""
        if self._again:
            return self._again.popleft()
        while True:
            answer = self._channel.wait(self._request(), Deadline.after(self._seconds))
            self._number += 1
            if not answer.ranges:
                return None
            # a coordinator that is started again continues behind the highest position it is told
            self._reached = max(self._reached, answer.ranges[-1][1])
            lease = SampleLease(answer.ranges, self._ordinals[answer.round] + answer.ahead)
            if not self.is_void(lease):  # it was given before a round that ended early
                break
        self._out.append(lease)
        # now, so that the answer comes while this batch is trained
        self._channel.say(self._request(wants=True))
        return lease

    def delivered(self, lease: SampleLease) -> None:
        """The script has it."""
        self._out.remove(lease)
        self._delivered += 1

    def is_void(self, lease: SampleLease) -> bool:
        """Whether it was for a round that is closed: the book has put it back."""
        return lease.due < self.ordinal

    def closes(self, lease: SampleLease | None) -> bool:
        """Whether the round has to be closed before the script gets this lease, or finds that there is none. Everybody
        trains one batch of a round, so that each round makes some."""
        if lease is None:
            return self.remains
        if self.is_void(lease):
            return False
        stops = self.terms.fastest and self._delivered > 0 and self._channel.is_closing(self._request())
        return stops or lease.due > self.ordinal

    def finish(self) -> None:
        """This worker closes the round."""
        if self.terms.fastest:
            self._channel.say(self._request(closes=True))

    def rewind(self) -> None:
        self._again = deque(self._out)

    def close(self, began: int, left: RemainingSamples) -> None:
        """A round is closed, and the next began at this step, with this left; the same on all workers."""
        self.ordinal, self._delivered = self.ordinal + 1, 0
        self._round, self._left = began, left
        self._ordinals[began] = self.ordinal
        if len(self._ordinals) > MOST_RANGES:
            del self._ordinals[min(self._ordinals)]
        self._out = deque(lease for lease in self._out if not self.is_void(lease))
        self._channel.say(self._request(wants=self._number > 0 and self.remains))

    def forget(self) -> None:
        """The pass is over."""
        self._channel.forget(self.terms.key[0])

    def _request(self, wants: bool = False, closes: bool = False) -> LeaseRequest:
        terms = self.terms
        held = [HeldLease(ahead=max(0, lease.due - self.ordinal), ranges=lease.ranges) for lease in self._out]
        return LeaseRequest(
            member=self._member,
            key=terms.key,
            round=self._round,
            pool=_pool(self._left, terms.items),
            batch=terms.batch,
            least=terms.least,
            steps=terms.steps,
            fastest=terms.fastest,
            closes=closes,
            # a message takes no more
            held=tuple(held[-MOST_RANGES:]),
            reached=self._reached,
            number=self._number,
            wants=wants,
        )


def _pool(left: RemainingSamples, items: int) -> tuple[Range, ...]:
    """Return positions as ranges; those that do not fit into a message are offered in a later round."""
    tail = ((left.position, items),) if left.position < items else ()
    return (*left.returned, *tail)[:MOST_RANGES]


class LeasedAllocator:
    """Gives this worker the batches it leases."""

    def __init__(self, queue: LeaseQueue, rank: int, size: int) -> None:
        self._queue, self._rank, self._size = queue, rank, size

    def allocate(self, read: Read[Any], left: RemainingSamples) -> Iterator[AllocatedBatch]:
        pick = picking(read)
        self._queue.rewind()
        while self._queue.remains and (lease := self._queue.next()) is not None:
            items = [pick(place) for begin, end in lease.ranges for place in range(begin, end)]
            yield AllocatedBatch(self._counts(len(items)), items, lease.ranges, lease)

    def _counts(self, samples: int) -> Counts:
        return tuple(samples if rank == self._rank else 0 for rank in range(self._size))


def picking(read: Read[Any]) -> Callable[[int], Any]:
    """Finds the item at a position in a source that is read in order."""
    known: list[Any] = []

    def pick(place: int) -> Any:
        if place >= len(known):
            # all items are kept, because leases may go back to earlier positions
            known.extend(read(place + 1 - len(known)))
        return known[place]

    return pick
