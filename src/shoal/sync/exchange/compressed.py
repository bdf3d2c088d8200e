"""Gradients travel as a codec writes them; statistics, and what no codec takes, go the way they always go.

    bucket full -> encode -> the payloads of all workers meet (sync/aggregate) -> their sum -> bucket

Replicas hold the same bits afterwards, as with the exchange inside. What is not finite is not encoded: all get NaN in
place of that bucket, as a sum would give them, and codecs remember what they did. A tensor on a device is encoded on
the host. Do not use a codec where the network is faster than encoding: `shoal bench` tells.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from shoal.core.clock import now
from shoal.groups.base import LARGEST_WORD, Check
from shoal.sync.aggregate.base import PayloadAggregator
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.guard import ConvergenceGuard
from shoal.sync.news import GuardTightened
from shoal.sync.price import NetworkEstimate, merged
from shoal.wire.bucket import BucketPlan, GradientBucket
from shoal.wire.layout import FlatLayout

T = TypeVar("T")
CODED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class CompressedExchange(GradientExchange):
    """Round another exchange, which carries what is not coded. `meet` makes the meeting for the buckets there are."""

    meeting: PayloadAggregator

    def __init__(
        self,
        inner: GradientExchange,
        meet: Callable[[Sequence[FlatLayout]], PayloadAggregator],
        codec: str = "",
        guard: ConvergenceGuard | None = None,
    ) -> None:
        self.inner, self._meet, self.session, self.codec = inner, meet, inner.session, codec
        self._guard = guard
        self._coded: dict[int, int] = {}
        self._plain: dict[int, int] = {}
        self._started: list[int] = []
        """Coded buckets of this exchange."""
        self._spoiled: set[int] = set()
        """Those of them in which this worker has numbers that are not finite."""
        self._word: GuardTightened | None = None
        """The guard's, of this exchange."""

    @property
    def peers(self) -> Sequence[int]:  # type: ignore[override]
        return self.inner.peers

    @property
    def repeatable(self) -> bool:  # type: ignore[override]
        guarded = self._guard is None or self._guard.repeatable
        return self.inner.repeatable and self.meeting.repeatable and guarded

    def whole(self) -> bool:
        return self.inner.whole() and self.meeting.whole() and (self._guard is None or self._guard.whole())

    def repeat(self) -> None:
        self.inner.repeat()
        self.meeting.repeat()
        if self._guard is not None:
            self._guard.repeat({self._coded[index]: self._values(index) for index in self._started})
            self.news = [each for each in self.news if each is not self._word]

    def recover(self) -> None:
        self.inner.recover()
        self.meeting.recover()
        if self._guard is not None:
            self._guard.recover()

    @property
    def meets(self) -> str:  # type: ignore[override]
        return self.meeting.kind

    @property
    def weight(self) -> float:
        return self.inner.weight

    @weight.setter
    def weight(self, weight: float) -> None:
        self.inner.weight = weight

    def open(self, plans: Sequence[BucketPlan]) -> list[GradientBucket]:
        plain = [i for i, plan in enumerate(plans) if not takes(plan)]
        found = dict(zip(plain, self.inner.open([plans[i] for i in plain]), strict=True))
        for number, plan in enumerate(plans):
            if number not in found:
                space = plan.space
                flat, result = (torch.zeros(space.numel, dtype=space.dtype, device=space.device) for _ in range(2))
                found[number] = GradientBucket(plan, flat, result)
        buckets = [found[i] for i in range(len(plans))]
        self._code(buckets)
        self._plain = {number: place for place, number in enumerate(plain)}
        return buckets

    def adopt(self, buckets: Sequence[GradientBucket]) -> None:
        """Code the buckets that the exchange inside has opened; those it cannot take stay with it."""
        self._code(buckets)
        self._plain = {number: number for number in range(len(buckets)) if number not in self._coded}

    def _code(self, buckets: Sequence[GradientBucket]) -> None:
        numbers = [number for number, bucket in enumerate(buckets) if takes(bucket.plan)]
        self._coded = {number: place for place, number in enumerate(numbers)}
        layouts = [buckets[number].plan.layout for number in numbers]
        self.meeting = self._meet(layouts)
        self.meeting.open(layouts)
        if self._guard is not None:
            self._guard.open(layouts)
        self._buckets = buckets
        self._results = {number: buckets[number].result[: buckets[number].plan.payload] for number in numbers}

    def prepare(self) -> None:
        self.inner.prepare()
        self.meeting.prepare()
        if self._guard is not None:
            self._guard.prepare()
        self._started, self._word = [], None
        self._spoiled.clear()

    def start(self, index: int) -> None:
        began, sent, wire, bucket = now(), self.sent, self.wire, self._buckets[index]
        if index in self._plain:
            self._counting(lambda: self.inner.start(self._plain[index]))
        else:
            bucket.seal(self.weight)
            self._encode(index, bucket)
            self.raw += bucket.raw
            self.encoding += now() - began
        if self.meter is not None:
            self.meter.left(index, began, bucket.raw, self.sent - sent, self.wire - wire)
            waits = self.meeting.residual(self._coded[index]) if index in self._coded else None
            self.meter.weigh(index, bucket.flat[: bucket.plan.payload], waits)

    def _encode(self, index: int, bucket: GradientBucket) -> None:
        values, place = self._values(index), self._coded[index]
        self._started.append(index)
        if self._guard is not None:
            self._guard.adapt(self.meeting)
        if _finite(values):
            self._counting(lambda: self.meeting.start(place, values, bucket.filled))
        else:
            self._spoiled.add(index)
            self._counting(lambda: self.meeting.spoil(place))
        if self._guard is not None:
            self.wire += self._guard.started(place, self._values(index))

    def _values(self, index: int) -> Tensor:
        """What this worker offers of a bucket that is sealed: float32 on the host."""
        bucket = self._buckets[index]
        values = bucket.flat[: bucket.plan.payload].detach().to("cpu", torch.float32)
        return torch.zeros_like(values) if index in self._spoiled else values

    def _counting(self, act: Callable[[], T]) -> T:
        """Do it, and count the bytes it took as ours."""
        parts = (self.inner, self.meeting)
        raw, sent, wire = self.inner.raw, sum(p.sent for p in parts), sum(p.wire for p in parts)
        result = act()
        self.raw += self.inner.raw - raw
        self.sent += sum(p.sent for p in parts) - sent
        self.wire += sum(p.wire for p in parts) - wire
        return result

    def progress(self) -> None:
        self.inner.progress()
        self.meeting.progress()
        if self.meter is not None:
            self.meter.look(self.landed)

    def landed(self, index: int) -> bool:
        if index in self._plain:
            return self.inner.landed(self._plain[index])
        return self.meeting.landed(self._coded[index])

    def finish(self, index: int) -> None:
        began, sent, wire, waited = now(), self.sent, self.wire, self.meeting.waited
        if index in self._plain:
            self.inner.finish(self._plain[index])
            wait = now() - began
        else:
            self._decode(index)
            wait = self.meeting.waited - waited
        if self.meter is not None:
            self.meter.finished(index, began, wait, self.sent - sent, self.wire - wire)

    def _decode(self, index: int) -> None:
        bucket, result = self._buckets[index], self._results[index]
        direct = result.dtype is torch.float32 and result.device.type == "cpu"
        out = result if direct else torch.empty(result.numel())
        self.meeting.arrive(self._coded[index])
        self.session.arrived()
        counts = self._counting(lambda: self.meeting.finish(self._coded[index], out))
        if self._guard is not None and (finding := self._guard.finished(self._coded[index], out)) is not None:
            self._word = self._guard.judge(finding)
            self.tell(self._word)
        if any(map(math.isnan, counts)):
            out.fill_(torch.nan)
        if not direct:
            result.copy_(out)
        bucket.marks.copy_(torch.tensor(counts))

    def launched(self) -> None:
        self._counting(self.meeting.launched)

    def hurry(self, urgencies: Sequence[int]) -> None:
        self.inner.hurry([urgencies[i] for i in self._plain])
        self.meeting.engine.hurry([urgencies[i] for i in self._coded])

    def arrival(self, index: int) -> float | None:
        if index in self._plain:
            return self.inner.arrival(self._plain[index])
        return self.meeting.engine.arrival(self._coded[index])

    def network(self) -> NetworkEstimate:
        return merged((self.inner.network(), self.meeting.engine.network()))

    def state(self) -> dict[str, Tensor]:
        found = dict(self.meeting.state())
        return found if self._guard is None else found | self._guard.state()

    def shared(self) -> dict[str, Tensor]:
        found = dict(self.meeting.shared())
        return found if self._guard is None else found | self._guard.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.meeting.load(state)
        for name, own in self._guard.state().items() if self._guard is not None else ():
            if name in state:
                own.copy_(state[name])

    def gather(self, data: bytes, limit: int = LARGEST_WORD, check: Check | None = None) -> list[bytes]:
        return self.inner.gather(data, limit, check)


def _finite(values: Tensor) -> bool:
    """One pass over what has just been written; a sum that overflows is looked at more closely."""
    return bool(values.sum().isfinite()) or bool(values.isfinite().all())


def takes(plan: BucketPlan) -> bool:
    """Whether a bucket is coded: gradients of a floating-point type, and nothing else."""
    return all(slot.name for slot in plan.slots) and plan.space.dtype in CODED
