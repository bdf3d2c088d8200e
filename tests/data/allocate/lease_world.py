"""Workers of unequal speed that lease samples from one book, in virtual time: messages take none, batches do."""

import heapq
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import count

from shoal.data.allocate.base import SampleLease
from shoal.data.allocate.leased import LeaseQueue, LeaseTerms
from shoal.data.remaining import RemainingSamples
from shoal.membership.lease_book import LeaseBook
from shoal.membership.lease_client import LeaseClient


@dataclass
class LeaseWorld:
    """`seconds`: of a batch, by worker; `ahead`: batches a loader reads ahead of the script."""

    terms: LeaseTerms
    seconds: list[float]
    ahead: int = 0
    losses: dict[float, int] = field(default_factory=dict)
    """When which worker is killed."""
    restarts: list[float] = field(default_factory=list)
    """When the coordinator loses its memory."""
    remote: int = 0
    """How many of the last workers are."""

    def __post_init__(self) -> None:
        names = [f"w{rank}.0" for rank in range(len(self.seconds))]
        self.own = set(names[: max(1, len(names) - self.remote)])
        self.book, self.left, self.base = LeaseBook(self.is_remote, restarted=False), RemainingSamples(), 0
        self.counted: Counter[int] = Counter()
        self.counted_in: list[set[int]] = []
        """Positions, by round."""
        self.made: Counter[str] = Counter()
        self.rounds, self.now, self._ids = 0, 0.0, count()
        self.workers: dict[str, LeasingWorker] = {}
        self.workers = {name: LeasingWorker(self, name, s) for name, s in zip(names, self.seconds, strict=True)}
        for worker in self.workers.values():
            worker.begin()

    def is_remote(self, member: str) -> bool:
        return member not in self.own

    def carry(self, beat: bool = False) -> None:
        """Bring what has been said to the book, and its answers back."""
        for worker in list(self.workers.values()):
            for request in worker.client.unsaid(beat):
                assert not self.book.objection(request, list(self.workers)), "it is honest"
                for member, answer in self.book.hear(request, list(self.workers)):
                    self.workers[member].client.hear(answer)

    def run(self) -> None:
        events = [(0.0, next(self._ids), worker) for worker in self.workers]
        events += [(at, next(self._ids), rank) for at, rank in self.losses.items()]
        events += [(at, next(self._ids), None) for at in self.restarts]
        heapq.heapify(events)
        while events:
            self.now, _, what = heapq.heappop(events)
            if what is None:
                self.book = LeaseBook(self.is_remote)
                self.carry(beat=True)
            elif isinstance(what, int):
                if self.own - {f"w{what}.0"}:  # remote workers go with the last of the run's own
                    self.own.discard(f"w{what}.0")
                    self.workers.pop(f"w{what}.0", None)
            elif what in self.workers and (seconds := self.workers[what].go_on()):
                heapq.heappush(events, (self.now + seconds, next(self._ids), what))
            if self.workers and all(worker.closing for worker in self.workers.values()):
                self._close()
                if self.left.count(self.terms.items) >= self.terms.least:
                    for worker in self.workers:
                        heapq.heappush(events, (self.now, next(self._ids), worker))

    def _close(self) -> None:
        trained = [lease for worker in self.workers.values() for lease in worker.trained]
        places = [place for lease in trained for begin, end in lease.ranges for place in range(begin, end)]
        for lease in trained:
            self.left = self.left.take_out(lease.ranges)
        self.counted.update(places)
        self.counted_in.append(set(places))
        self.base += max(1, *(len(worker.trained) for worker in self.workers.values()), 1)
        self.rounds += 1
        for name, worker in self.workers.items():
            self.made[name] += len(worker.trained)
            worker.trained, worker.closing = [], False
            worker.queue.close(self.base, self.left)


class LeasingWorker:
    """Trains what it leases, until a lease is for a later round or there is none."""

    def __init__(self, world: LeaseWorld, member: str, seconds: float) -> None:
        self.world, self.member, self.seconds = world, member, seconds
        self.client = LeaseClient(world.carry, self._unanswered)
        self.read: deque[SampleLease] = deque()
        self.trained: list[SampleLease] = []
        self.closing = self._dry = False

    def begin(self) -> None:
        self.queue = LeaseQueue(self.client, self.member, self.world.terms, 0, RemainingSamples(), 60.0)

    def _unanswered(self) -> None:
        raise AssertionError(f"{self.member} waits, and nobody else will say anything")

    def go_on(self) -> float:
        """Seconds until this one goes on again; 0: when the round is closed."""
        if self.closing:
            return 0.0
        self._read_ahead()
        if self.queue.closes(self.read[0] if self.read else None) or not self.read:
            self.closing = True
            self.queue.finish()
            return 0.0
        self.queue.delivered(self.read[0])
        self.trained.append(self.read.popleft())
        return self.seconds

    def _read_ahead(self) -> None:
        while True:
            while self.read and self.queue.is_void(self.read[0]):
                self.read.popleft()
            if len(self.read) > self.world.ahead or not self.queue.remains or (lease := self.queue.next()) is None:
                return
            self.read.append(lease)
