"""Which replica computes which batch: decisions alone, without socket or clock, so that tests can play every order.

    wanted ── a replica that holds the program has a free slot ──> asked ── its answer ──> done
       ^                                                            │
       └──── the replica is lost, or silent ────────────────────────┘

A batch may be computed twice, because models have no effect but their answer; the first answer counts. A batch that
three replicas were lost with is given up: it may be what kills them.
"""

from concurrent.futures import Future
from dataclasses import dataclass, field

from shoal.serve.errors import RequestError, ServerBusy
from shoal.serve.tensors import Tensors

MOST_TRIES = 3
AGAIN = 5.0
"""Seconds after which a client that was refused may come again."""


@dataclass(eq=False)
class ReplicaBatch:
    """A batch on its way."""

    serial: int
    """Of the program."""
    data: bytes
    due: float
    """When it is given up, if no replica has it by then."""
    answer: "Future[Tensors]" = field(default_factory=Future)
    tries: int = 0
    number: int = 0
    """Another one each time that a replica is asked."""

    def __post_init__(self) -> None:
        self.answer.set_running_or_notify_cancel()  # from now on only the dealer ends it


@dataclass(eq=False)
class KnownReplica:
    """A process that has said it lives."""

    name: str
    slots: int
    holds: frozenset[int] = frozenset()
    """Serials of the programs that it can be asked with."""
    asked: dict[int, ReplicaBatch] = field(default_factory=dict)


class BatchDealer:
    """Used by one thread."""

    def __init__(self) -> None:
        self._wanted: list[ReplicaBatch] = []
        self._numbers = 0
        self.replicas: dict[bytes, KnownReplica] = {}
        """By connection."""

    def add(self, batch: ReplicaBatch) -> None:
        self._wanted.append(batch)

    def width(self, serial: int) -> int:
        """Batches of a program that can be computed at the same time."""
        return sum(each.slots for each in list(self.replicas.values()) if serial in each.holds)

    def deal(self) -> list[tuple[bytes, ReplicaBatch]]:
        """Give what waits to replicas with free slots, the least busy first; returns who is asked what."""
        given, left = list[tuple[bytes, ReplicaBatch]](), list[ReplicaBatch]()
        for batch in self._wanted:
            able = [
                (len(each.asked) / each.slots, route)
                for route, each in self.replicas.items()
                if batch.serial in each.holds and len(each.asked) < each.slots
            ]
            if not able:
                left.append(batch)
                continue
            route = min(able)[1]
            self._numbers += 1
            batch.number, batch.tries = self._numbers, batch.tries + 1
            self.replicas[route].asked[batch.number] = batch
            given.append((route, batch))
        self._wanted = left
        return given

    def find(self, route: bytes, number: int) -> ReplicaBatch | None:
        """The batch of that number, if this replica was asked for it."""
        replica = self.replicas.get(route)
        return replica.asked.get(number) if replica is not None else None

    def finish(self, route: bytes, batch: ReplicaBatch, found: Tensors | RequestError) -> None:
        self.replicas[route].asked.pop(batch.number, None)
        if batch.answer.done():
            return
        if isinstance(found, RequestError):
            batch.answer.set_exception(found)
        else:
            batch.answer.set_result(found)

    def lose(self, route: bytes) -> KnownReplica | None:
        """The replica is gone: what it was asked goes to others, before what came later."""
        replica = self.replicas.pop(route, None)
        if replica is None:
            return None
        again = [each for each in replica.asked.values() if not each.answer.done()]
        for batch in again:
            if batch.tries >= MOST_TRIES:
                words = f"{batch.tries} replicas were lost while they computed this batch"
                batch.answer.set_exception(ServerBusy(words, AGAIN))
        # In front, because they have waited longest.
        self._wanted[:0] = [each for each in again if not each.answer.done()]
        return replica

    def expire(self, now: float) -> None:
        """Refuse what no replica could be asked for in time."""
        for batch in self._wanted:
            if batch.due <= now:
                batch.answer.set_exception(ServerBusy("no replica answers at the moment; try again later", AGAIN))
        self._wanted = [each for each in self._wanted if not each.answer.done()]

    def close(self) -> None:
        """Refuse everything: the server ends."""
        for route in list(self.replicas):
            self.lose(route)
        self.expire(float("inf"))
