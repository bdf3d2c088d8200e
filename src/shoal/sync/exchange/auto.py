"""Chooses a codec after some steps without one: `wire(auto)`, between hosts.

    exchanges 1, 2      not measured: allocations, caches
    exchanges 3 … 8     measured: the step, the transfer, what of it was hidden; the links' rate and round trip
    exchange 9          the figures of all workers are averaged by the exchange itself
    from 10 on          what all chose alike (sync/choosing.py)

Nobody is asked and nothing is broadcast: the averages are the same bits everywhere, and the choice a pure function of
them. Do not use it inside one host, where nothing crosses a socket.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.core.clock import now
from shoal.sync.choosing import choose
from shoal.sync.engine.base import Engine
from shoal.sync.exchange.base import Exchange
from shoal.sync.meter import Meter
from shoal.sync.news import Switched
from shoal.sync.price import Measured, Network, Price, summing_hops
from shoal.wire.bucket import Bucket, BucketPlan, Space

SKIPPED, MEASURED = 2, 6
TELLING = 64 << 10
"""Bytes a step from which on the time they took tells a rate."""


@dataclass(frozen=True)
class Candidate:
    """A codec that may be chosen."""

    price: Price
    """By the trial on this worker."""
    take: Callable[[Sequence[Bucket]], Exchange]
    """The exchange that codes these buckets."""


class AutoExchange(Exchange):
    """Round an exchange without a codec; `candidates` are made once the buckets are known."""

    def __init__(
        self,
        inner: Exchange,
        engine: Engine,
        workers: int,
        candidates: Callable[[Sequence[BucketPlan]], list[Candidate]],
    ) -> None:
        self.inner, self.session = inner, inner.session
        self._now, self._engine, self._workers, self._make = inner, engine, workers, candidates
        self._count = 0
        self._open: set[int] = set()
        self._began: list[float] = []
        self._own: Meter | None = None
        self._given: Meter | None = None
        self._next: Exchange | None = None
        self._measuring = True

    @property
    def peers(self) -> Sequence[int]:  # type: ignore[override]
        return self.inner.peers

    @property
    def weight(self) -> float:
        return self.inner.weight

    @weight.setter
    def weight(self, weight: float) -> None:
        self.inner.weight = weight

    @property
    def meter(self) -> Meter | None:
        """Of those that measure from outside; while this exchange measures by itself, they wait."""
        return self._given

    @meter.setter
    def meter(self, meter: Meter | None) -> None:
        self._given = None if self._measuring else meter
        if not self._measuring:
            self._now.meter = meter

    @property
    def encoding(self) -> float:  # type: ignore[override]
        return self._now.encoding

    def open(self, plans: Sequence[BucketPlan]) -> list[Bucket]:
        self._buckets = buckets = self.inner.open(plans)
        self._candidates = self._make(plans)
        width = 6 + 2 * len(self._candidates)
        ((self._leaving, self._result),) = self._engine.open([Space(width, torch.float64, torch.device("cpu"))])
        return buckets

    def prepare(self) -> None:
        self._now.prepare()

    def start(self, index: int) -> None:
        if not self._open:
            self._begin()
        self._open.add(index)
        self._counting(lambda: self._now.start(index))

    def _begin(self) -> None:
        """An exchange begins: the last one is over everywhere."""
        self._count += 1
        if not self._measuring:
            return
        self._began.append(now())
        if self._count == SKIPPED + 1:
            self._own = self.inner.meter = Meter.over(self.layers)
        elif self._count == SKIPPED + MEASURED + 1:
            self.inner.meter = None
            self._engine.prepare()
            self._leaving.copy_(self._figures())
            self._engine.start(0)
        elif self._count == SKIPPED + MEASURED + 2:
            self._switch()

    def _counting(self, act: Callable[[], None]) -> None:
        exchange = self._now
        raw, sent, wire = exchange.raw, exchange.sent, exchange.wire
        act()
        self.raw += exchange.raw - raw
        self.sent += exchange.sent - sent
        self.wire += exchange.wire - wire

    def progress(self) -> None:
        self._now.progress()

    def landed(self, index: int) -> bool:
        return self._now.landed(index)

    def finish(self, index: int) -> None:
        self._counting(lambda: self._now.finish(index))
        self._open.discard(index)
        if not self._open and self._count == SKIPPED + MEASURED + 1 and self._measuring:
            self._engine.finish(0)
            self._decide()
        if self._now.news:
            self.news, self._now.news = [*self.news, *self._now.news], ()

    def _figures(self) -> Tensor:
        """This worker's part of the averages: its own measurements, divided by the number of workers."""
        meter, network = self._own, self.inner.network()
        assert meter is not None
        # from the first measured exchange's beginning to the end of the step of the last: all spans lie in it
        step = (self._began[-1] - self._began[SKIPPED]) / MEASURED
        wait, wire = (sum(getattr(a, name) for a in meter.accounts) / MEASURED for name in ("wait", "wire"))
        span, rtt = meter.span / MEASURED, network.rtt or 0.0
        seen = wire / (span - rtt / 2) if wire >= TELLING and span > rtt / 2 else 0.0
        rate = max(seen, network.rate or 0.0)
        # not the rate but what a byte takes, so that the slow ones count; a worker that knows none says infinity
        found = [step, span, wait, meter.room / MEASURED, 1 / rate if rate else torch.inf, rtt]
        for candidate in self._candidates:
            found += [candidate.price.encode, candidate.price.decode]
        return torch.tensor(found, dtype=torch.float64) / self._workers

    def _decide(self) -> None:
        step, span, wait, room, byte, rtt, *costs = self._result.tolist()
        wire = sum(account.wire for account in self._own.accounts) / MEASURED if self._own is not None else 0.0
        measured = Measured(
            Price("", 0.0, 0.0, wire, summing_hops(self._workers)), step, span, wait, room, max(1, len(self._buckets))
        )
        network = Network(1 / byte if byte not in (0.0, float("inf")) else None, rtt or None)
        prices = [
            Price(c.price.codec, encode, decode, c.price.wire, c.price.hops)
            for c, encode, decode in zip(self._candidates, costs[::2], costs[1::2], strict=True)
        ]
        choice = choose(measured, prices, network)
        chosen = [c for c in self._candidates if c.price.codec == choice.codec]
        self._next = chosen[0].take(self._buckets) if chosen else None
        self.tell(Switched(choice.codec, choice.reason, choice.steps))

    def _switch(self) -> None:
        self._measuring, self._own = False, None
        if self._next is not None:
            self._now, self._next = self._next, None
            self.codec, self.meets = self._now.codec, self._now.meets
            self._now.prepare()

    def network(self) -> Network:
        return self._now.network()

    def state(self) -> dict[str, Tensor]:
        return self._now.state()

    def gather(self, data: bytes) -> list[bytes]:
        return self.inner.gather(data)
