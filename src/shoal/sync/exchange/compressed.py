"""Gradients travel as a codec writes them; statistics, and what no codec takes, go through the exchange inside.

    bucket full -> encode -> combine the payloads of all workers (sync/aggregate) -> their sum -> bucket

Replicas hold the same bits afterwards, as with the exchange inside. Numbers that are not finite are not encoded: all
workers get NaN in place of that bucket, as a sum would give them, and codecs keep their state. A tensor on a device is
encoded on the host. Do not use a codec where the network is faster than encoding: `shoal bench` tells.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from shoal.core.clock import now
from shoal.sync.aggregate.base import PayloadAggregator
from shoal.sync.exchange.base import GradientExchange, WrappingExchange
from shoal.sync.guard import ConvergenceGuard
from shoal.sync.observer import GuardTightened
from shoal.sync.price import NetworkEstimate, merged
from shoal.wire.bucket import BucketPlan, GradientBucket
from shoal.wire.layout import FlatLayout

CODED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class CompressedExchange(WrappingExchange):
    """Around an exchange that carries what is not coded; `make_aggregator` is called once the buckets are known."""

    aggregator: PayloadAggregator

    def __init__(
        self,
        inner: GradientExchange,
        make_aggregator: Callable[[Sequence[FlatLayout]], PayloadAggregator],
        codec: str = "",
        guard: ConvergenceGuard | None = None,
    ) -> None:
        super().__init__(inner)
        self._make_aggregator, self._codec, self._guard = make_aggregator, codec, guard
        self._coded: dict[int, int] = {}
        """Coded buckets, and their numbers in the aggregator."""
        self._started: list[int] = []
        """Coded buckets of this exchange."""
        self._non_finite: set[int] = set()
        """Those of them in which this worker has numbers that are not finite."""
        self._finding: GuardTightened | None = None
        """What the guard found in this exchange."""

    def open_numbered(self, plans: Mapping[int, BucketPlan]) -> dict[int, GradientBucket]:
        found = super().open_numbered({number: plan for number, plan in plans.items() if not is_coded(plan)})
        for number, plan in plans.items():
            if number not in found:
                space = plan.space
                # two tensors: what was offered must stay as it is while the sum arrives, for a retry
                flat, result = (torch.zeros(space.numel, dtype=space.dtype, device=space.device) for _ in range(2))
                found[number] = GradientBucket(plan, flat, result)
        buckets = {number: found[number] for number in plans}
        self.adopt(buckets)
        return buckets

    def adopt(self, buckets: Mapping[int, GradientBucket]) -> None:
        """Code these buckets, which are open already; those that no codec takes stay with the exchange inside."""
        numbers = [number for number, bucket in buckets.items() if is_coded(bucket.plan)]
        self._coded = {number: place for place, number in enumerate(numbers)}
        layouts = [buckets[number].plan.layout for number in numbers]
        self.aggregator = self._make_aggregator(layouts)
        self.aggregator.open(layouts, self.observer)
        if self._guard is not None:
            self._guard.open(layouts)
        self._buckets = buckets
        self._results = {number: buckets[number].result[: buckets[number].plan.payload] for number in numbers}

    def prepare(self) -> None:
        super().prepare()
        self.aggregator.prepare()
        if self._guard is not None:
            self._guard.prepare()
        self._started, self._finding = [], None
        self._non_finite.clear()
        # here, not when it is built: wire(auto) builds it before the exchange that uses it first
        self.observer.codec, self.observer.aggregation = self._codec, self.aggregator.kind

    def start(self, index: int) -> None:
        if index not in self._coded:
            super().start(index)
            return
        observer, bucket, began = self.observer, self._buckets[index], now()
        sent, wire = observer.sent_bytes, observer.wire_bytes
        bucket.seal(self.weight)
        self._encode(index, bucket)
        observer.raw_bytes += bucket.raw
        observer.encode_seconds += now() - began
        residual = self.aggregator.residual(self._coded[index])
        observer.bucket_started(index, bucket, began, observer.sent_bytes - sent, observer.wire_bytes - wire, residual)

    def _encode(self, index: int, bucket: GradientBucket) -> None:
        values, place = self._values(index), self._coded[index]
        self._started.append(index)
        if self._guard is not None:
            self._guard.adapt(self.aggregator)
        if _is_finite(values):
            self.aggregator.start(place, values, bucket.filled)
        else:
            self._non_finite.add(index)
            self.aggregator.start_non_finite(place)
        if self._guard is not None:
            self.observer.wire_bytes += self._guard.started(place, self._values(index))

    def _values(self, index: int) -> Tensor:
        """Return what this worker offers of a sealed bucket: float32 on the host."""
        bucket = self._buckets[index]
        values = bucket.flat[: bucket.plan.payload].detach().to("cpu", torch.float32)
        # zeros for the guard, whose sums one NaN would spoil for the whole window
        return torch.zeros_like(values) if index in self._non_finite else values

    def all_started(self) -> None:
        self.aggregator.all_started()

    def advance(self) -> None:
        super().advance()
        self.aggregator.progress()

    def finish(self, index: int) -> None:
        if index not in self._coded:
            super().finish(index)
            return
        observer, began = self.observer, now()
        sent, wire, waited = observer.sent_bytes, observer.wire_bytes, observer.wait_seconds
        self._decode(index)
        observer.aggregation = self.aggregator.kind  # a retry among fewer members may have changed it
        observer.bucket_finished(
            index,
            began,
            observer.wait_seconds - waited,
            observer.sent_bytes - sent,
            observer.wire_bytes - wire,
        )

    def _decode(self, index: int) -> None:
        bucket, result, place = self._buckets[index], self._results[index], self._coded[index]
        direct = result.dtype is torch.float32 and result.device.type == "cpu"
        out = result if direct else torch.empty(result.numel())
        self.aggregator.await_arrival(place)
        # other members may be told while this worker decodes
        self.session.arrived()
        counts = self.aggregator.finish(place, out)
        if self._guard is not None and (finding := self._guard.finished(place, out)) is not None:
            self._finding = self._guard.judge(finding)
            self.observer.report(self._finding)
        # somebody's numbers were not finite: all workers get what an uncoded sum would give
        if any(map(math.isnan, counts)):
            out.fill_(torch.nan)
        if not direct:
            result.copy_(out)
        # what an uncoded sum brings behind the gradients
        bucket.marks.copy_(torch.tensor(counts))

    def is_done(self, index: int) -> bool:
        if index not in self._coded:
            return super().is_done(index)
        return self.aggregator.is_done(self._coded[index])

    def set_priorities(self, priorities: Sequence[int]) -> None:
        super().set_priorities(priorities)
        self.aggregator.engine.set_priorities([priorities[number] for number in self._coded])

    def arrival_time(self, index: int) -> float | None:
        if index not in self._coded:
            return super().arrival_time(index)
        return self.aggregator.engine.arrival_time(self._coded[index])

    def estimate_network(self) -> NetworkEstimate:
        return merged((super().estimate_network(), self.aggregator.engine.estimate_network()))

    @property
    def retryable(self) -> bool:  # type: ignore[override]
        guarded = self._guard is None or self._guard.retryable
        return super().retryable and self.aggregator.retryable and guarded

    def is_complete(self) -> bool:
        guarded = self._guard is None or self._guard.is_complete()
        return super().is_complete() and self.aggregator.is_complete() and guarded

    def retry(self) -> None:
        super().retry()
        self.aggregator.retry()
        if self._guard is not None:
            self._guard.retry({self._coded[index]: self._values(index) for index in self._started})
            self.observer.withdraw(self._finding)

    def finish_locally(self) -> None:
        super().finish_locally()
        self.aggregator.finish_locally()
        if self._guard is not None:
            self._guard.finish_locally()

    def state(self) -> dict[str, Tensor]:
        found = dict(self.aggregator.state())
        return found if self._guard is None else found | self._guard.state()

    def shared(self) -> dict[str, Tensor]:
        found = dict(self.aggregator.shared())
        return found if self._guard is None else found | self._guard.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.aggregator.load(state)
        for name, own in self._guard.state().items() if self._guard is not None else ():
            if name in state:
                own.copy_(state[name])


def _is_finite(values: Tensor) -> bool:
    """Return whether all numbers are finite; one pass, and a second only if the sum overflows."""
    return bool(values.sum().isfinite()) or bool(values.isfinite().all())


def is_coded(plan: BucketPlan) -> bool:
    """Return whether a codec takes a bucket: gradients of a floating-point type, and nothing else."""
    return all(slot.name for slot in plan.slots) and plan.space.dtype in CODED
