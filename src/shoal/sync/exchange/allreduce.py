"""All replicas hold the mean of all gradients: synchronous all-reduce, without a server.

Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009; as training method
Chen et al., "Revisiting Distributed Synchronous SGD", 2016. Between hosts a worker sends 2 (p-1)/p of its gradient
bytes; inside one host nothing crosses a socket. Do not use it where one worker is much slower than the others, or
where the network is slow: every step waits for the slowest.
"""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from shoal.core.clock import now
from shoal.groups.base import LARGEST_WORD, Check, WorkerGroup
from shoal.sync.engine.base import AllReduceEngine
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.observer import ExchangeObserver
from shoal.sync.price import NetworkEstimate, merged
from shoal.wire.bucket import BucketPlan, GradientBucket


class AllReduceExchange(GradientExchange):
    """Sums every bucket over the group, on the engine of the device the bucket lies on."""

    compresses = False

    def __init__(
        self,
        group: WorkerGroup,
        engine_for: Callable[[str], AllReduceEngine],
        observer: ExchangeObserver | None = None,
    ) -> None:
        super().__init__(observer)
        self.group, self.session = group, group.session
        self.weight = 1.0 / group.size
        self._engine_for = engine_for
        self._engines: list[AllReduceEngine] = []
        self._places: dict[int, tuple[AllReduceEngine, int]] = {}
        """Of each bucket: its engine, and its number there."""

    @property
    def peers(self) -> list[int]:  # type: ignore[override]
        return [rank for rank in range(self.group.size) if rank != self.group.rank]

    def open_numbered(self, plans: Mapping[int, BucketPlan]) -> dict[int, GradientBucket]:
        found: dict[int, GradientBucket] = {}
        # sorted, because engines are made in the same order on every worker
        for device in sorted({plan.space.device.type for plan in plans.values()}):
            engine = self._engine_for(device)
            self._engines.append(engine)
            numbers = [number for number, plan in plans.items() if plan.space.device.type == device]
            pairs = engine.open([plans[number].space for number in numbers])
            for place, (number, pair) in enumerate(zip(numbers, pairs, strict=True)):
                self._places[number] = (engine, place)
                found[number] = _bucket(plans[number], *pair)
        self._buckets = {number: found[number] for number in plans}
        return dict(self._buckets)

    def prepare(self) -> None:
        for engine in self._engines:
            engine.prepare()

    def start(self, index: int) -> None:
        engine, place = self._places[index]
        bucket, began, observer = self._buckets[index], now(), self.observer
        bucket.seal(self.weight)
        sent, wire = bucket.plan.payload * bucket.flat.element_size(), engine.wire_bytes(place)
        observer.raw_bytes += bucket.raw
        observer.sent_bytes += sent
        observer.wire_bytes += wire
        engine.start(place)
        # after it has left, so that the norms a meter takes do not delay it
        observer.bucket_started(index, bucket, began, sent, wire)

    def advance(self) -> None:
        for engine in self._engines:
            engine.progress()

    def is_done(self, index: int) -> bool:
        engine, place = self._places[index]
        return engine.is_done(place)

    def finish(self, index: int) -> None:
        engine, place = self._places[index]
        began = now()
        engine.finish(place)
        self.observer.bucket_finished(index, began)

    def estimate_network(self) -> NetworkEstimate:
        return merged(engine.estimate_network() for engine in self._engines)

    def set_priorities(self, priorities: Sequence[int]) -> None:
        for engine in self._engines:
            engine.set_priorities([priorities[n] for n, (own, _) in self._places.items() if own is engine])

    def arrival_time(self, index: int) -> float | None:
        engine, place = self._places[index]
        return engine.arrival_time(place)

    @property
    def retryable(self) -> bool:  # type: ignore[override]
        return all(engine.retryable for engine in self._engines)

    def is_complete(self) -> bool:
        return all(engine.is_complete() for engine in self._engines)

    def retry(self) -> None:
        for engine in self._engines:
            engine.retry()

    def finish_locally(self) -> None:
        for engine in self._engines:
            engine.finish_locally()

    def gather(self, data: bytes, limit: int = LARGEST_WORD, check: Check | None = None) -> list[bytes]:
        return self.group.gather_inside(data, limit, check)


def _bucket(plan: BucketPlan, leaving: Tensor, result: Tensor) -> GradientBucket:
    # None: the result comes back in place, so the bucket needs no second set of views
    return GradientBucket(plan, leaving, None if result is leaving else result)
