"""All replicas hold the mean of all gradients: synchronous all-reduce, without a server.

Patarasu & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009; as training method
Chen et al., "Revisiting Distributed Synchronous SGD", 2016. Between hosts a worker sends 2 (p-1)/p of its gradient
bytes; inside one host nothing crosses a socket. Do not use it where one worker is much slower than the others, or
where the network is: every step waits for the slowest.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from shoal.core.clock import now
from shoal.groups.base import LARGEST_WORD, Check, WorkerGroup
from shoal.sync.engine.base import ExchangeEngine
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.price import NetworkEstimate, merged
from shoal.wire.bucket import BucketPlan, GradientBucket


class AllReduceExchange(GradientExchange):
    """Sums every bucket over the group, on the engine that suits where the bucket lies."""

    codes = False

    def __init__(self, group: WorkerGroup, engine_for: Callable[[str], ExchangeEngine]) -> None:
        self.group, self.session = group, group.session
        self.weight = 1.0 / group.size
        self._engine_for = engine_for
        self._engines: list[tuple[ExchangeEngine, int]] = []
        self._busy: list[ExchangeEngine] = []

    @property
    def peers(self) -> list[int]:  # type: ignore[override]
        return [rank for rank in range(self.group.size) if rank != self.group.rank]

    def open(self, plans: Sequence[BucketPlan]) -> list[GradientBucket]:
        kinds = sorted({plan.space.device.type for plan in plans})
        self._engines = [(None, 0)] * len(plans)  # type: ignore[list-item]
        tensors = {}
        for kind in kinds:
            engine = self._engine_for(kind)
            self._busy.append(engine)
            numbers = [i for i, plan in enumerate(plans) if plan.space.device.type == kind]
            for place, (number, tensor) in enumerate(
                zip(numbers, engine.open([plans[i].space for i in numbers]), strict=True)
            ):
                self._engines[number] = (engine, place)
                tensors[number] = tensor
        self._buckets = buckets = [_bucket(plan, *tensors[i]) for i, plan in enumerate(plans)]
        return buckets

    def prepare(self) -> None:
        for engine in self._busy:
            engine.prepare()

    def start(self, index: int) -> None:
        engine, place = self._engines[index]
        bucket, began = self._buckets[index], now()
        bucket.seal(self.weight)
        sent, wire = bucket.plan.payload * bucket.flat.element_size(), engine.wire(place)
        self.raw, self.sent, self.wire = self.raw + bucket.raw, self.sent + sent, self.wire + wire
        engine.start(place)
        if self.meter is not None:
            self.meter.left(index, began, bucket.raw, sent, wire)
            self.meter.weigh(index, bucket.flat[: bucket.plan.payload], None)

    def progress(self) -> None:
        for engine in self._busy:
            engine.progress()
        if self.meter is not None:
            self.meter.look(self.landed)

    def landed(self, index: int) -> bool:
        engine, place = self._engines[index]
        return engine.landed(place)

    def finish(self, index: int) -> None:
        engine, place = self._engines[index]
        began = now()
        engine.finish(place)
        if self.meter is not None:
            self.meter.finished(index, began, now() - began, 0, 0)

    def network(self) -> NetworkEstimate:
        return merged(engine.network() for engine in self._busy)

    def hurry(self, urgencies: Sequence[int]) -> None:
        for engine in self._busy:
            engine.hurry([u for u, (own, _) in zip(urgencies, self._engines, strict=True) if own is engine])

    def arrival(self, index: int) -> float | None:
        engine, place = self._engines[index]
        return engine.arrival(place)

    @property
    def repeatable(self) -> bool:  # type: ignore[override]
        return all(engine.repeatable for engine in self._busy)

    def whole(self) -> bool:
        return all(engine.whole() for engine in self._busy)

    def repeat(self) -> None:
        for engine in self._busy:
            engine.repeat()

    def recover(self) -> None:
        for engine in self._busy:
            engine.recover()

    def gather(self, data: bytes, limit: int = LARGEST_WORD, check: Check | None = None) -> list[bytes]:
        return self.group.gather_inside(data, limit, check)


def _bucket(plan: BucketPlan, leaving: Tensor, result: Tensor) -> GradientBucket:
    return GradientBucket(plan, leaving, None if result is leaving else result)
