"""Gradients travel as a codec writes them; statistics, and what no codec takes, go the way they always go.

    bucket full -> encode -> the payloads of all workers meet (sync/meet) -> their sum -> bucket

Replicas hold the same bits afterwards, as with the exchange inside. A tensor on a device is encoded on the host. Do not
use a codec where the network is faster than encoding: `shoal bench` tells.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from shoal.core.clock import now
from shoal.sync.exchange.base import Exchange
from shoal.sync.meet.base import Meeting
from shoal.wire.bucket import Bucket, BucketPlan

T = TypeVar("T")
CODED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class CodedExchange(Exchange):
    """Round another exchange, which carries what is not coded."""

    def __init__(self, inner: Exchange, meeting: Meeting) -> None:
        self.inner, self.meeting, self.session = inner, meeting, inner.session
        self._coded: dict[int, int] = {}
        self._plain: dict[int, int] = {}

    @property
    def peers(self) -> Sequence[int]:  # type: ignore[override]
        return self.inner.peers

    @property
    def repeatable(self) -> bool:  # type: ignore[override]
        return self.inner.repeatable and self.meeting.repeatable

    def whole(self) -> bool:
        return self.inner.whole() and self.meeting.whole()

    def repeat(self) -> None:
        self.inner.repeat()
        self.meeting.repeat()

    def recover(self) -> None:
        self.inner.recover()
        self.meeting.recover()

    @property
    def weight(self) -> float:
        return self.inner.weight

    @weight.setter
    def weight(self, weight: float) -> None:
        self.inner.weight = weight

    def open(self, plans: Sequence[BucketPlan]) -> list[Bucket]:
        coded = [i for i, plan in enumerate(plans) if _takes(plan)]
        plain = [i for i in range(len(plans)) if i not in set(coded)]
        self._coded, self._plain = ({n: place for place, n in enumerate(group)} for group in (coded, plain))
        self.meeting.open([plans[i].layout for i in coded])
        found = dict(zip(plain, self.inner.open([plans[i] for i in plain]), strict=True))
        for number in coded:
            space = plans[number].space
            flat, result = (torch.zeros(space.numel, dtype=space.dtype, device=space.device) for _ in range(2))
            found[number] = Bucket(plans[number], flat, result)
        self._buckets = [found[i] for i in range(len(plans))]
        self._results = {number: found[number].result[: plans[number].payload] for number in coded}
        return self._buckets

    def prepare(self) -> None:
        self.inner.prepare()
        self.meeting.prepare()

    def start(self, index: int) -> None:
        if index in self._plain:
            self._counting(lambda: self.inner.start(self._plain[index]))
            return
        began, bucket = now(), self._buckets[index]
        bucket.seal(self.weight)
        values = _plain(bucket.flat[: bucket.plan.payload])
        self._counting(lambda: self.meeting.start(self._coded[index], values, bucket.filled))
        self.raw += bucket.raw
        self.encoding += now() - began

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

    def finish(self, index: int) -> None:
        if index in self._plain:
            self.inner.finish(self._plain[index])
            return
        bucket, result = self._buckets[index], self._results[index]
        direct = result.dtype is torch.float32 and result.device.type == "cpu"
        out = result if direct else torch.empty(result.numel())
        counts = self._counting(lambda: self.meeting.finish(self._coded[index], out))
        if not direct:
            result.copy_(out)
        bucket.marks.copy_(torch.tensor(counts))

    def launched(self) -> None:
        self._counting(self.meeting.launched)

    def hurry(self, urgencies: Sequence[int]) -> None:
        self.inner.hurry([urgencies[i] for i in self._plain])
        self.meeting.engine.hurry([urgencies[i] for i in self._coded])

    def landed(self, index: int) -> float | None:
        if index in self._plain:
            return self.inner.landed(self._plain[index])
        return self.meeting.engine.landed(self._coded[index])

    def state(self) -> dict[str, Tensor]:
        return dict(self.meeting.state())

    def gather(self, data: bytes) -> list[bytes]:
        return self.inner.gather(data)


def _takes(plan: BucketPlan) -> bool:
    return all(slot.name for slot in plan.slots) and plan.space.dtype in CODED


def _plain(values: Tensor) -> Tensor:
    """float32 on the host; itself if it is."""
    return values.detach().to("cpu", torch.float32)
