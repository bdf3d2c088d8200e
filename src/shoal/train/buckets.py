"""What each bucket's exchange takes, measured in some steps only, and what other codecs would cost instead.

As layers are timed: in the first steps, then four times a second. The very first step also allocates, compiles and
loads code, so it is never measured. Prices of other codecs are found once, by worker 0, with numbers drawn at random.
"""

import time
from collections import Counter

from shoal.core.events import SECONDS, BucketFigures, BucketTimes, CodecPriced, RunEvent
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.meter import BucketAccount, ExchangeMeter
from shoal.train.codec_candidates import prices
from shoal.train.news import event_of

SAMPLE_SECONDS = 0.25
FIRST_SAMPLES = 4


class BucketTimer:
    """Measures the buckets of what one `join` joined. `asks`: whether other codecs' prices are wanted too."""

    def __init__(self, exchange: GradientExchange, asks: bool) -> None:
        self.exchange, self._asks = exchange, asks
        self._taken = self._measured = 0
        self._seconds = self._sampled_at = 0.0
        self._ways = Counter[str]()
        """How payloads met in the steps that were measured: it may change with the members."""
        self._meter = ExchangeMeter.over(exchange.layers)

    def step_ended(self, at: float, seconds: float) -> None:
        """Take in what was measured of a step, and measure the next one if it is time to."""
        exchange = self.exchange
        if exchange.observer.meter is not None:
            exchange.observer.meter = None
            self._sampled_at = at
            self._taken += 1
            self._measured += 1
            self._seconds += seconds
            self._ways[exchange.observer.aggregation] += 1
        if self._taken < FIRST_SAMPLES or at - self._sampled_at > SAMPLE_SECONDS:
            exchange.observer.meter = self._meter

    def decisions(self, step: int) -> list[RunEvent]:
        """What the exchange has decided in the step that was closed."""
        news = self.exchange.observer.take_decisions()
        return [event_of(each, step) for each in news]

    def figures(self, step: int, join: int = 0) -> list[BucketTimes | CodecPriced]:
        """What was measured since this was last asked, as events; prices with the first."""
        if not self._measured or not any(account.raw for account in self._meter.accounts):
            return []
        meter, measured, network = self._meter, self._measured, self.exchange.estimate_network()
        found: list[BucketTimes | CodecPriced] = [
            BucketTimes(
                at=time.time(),
                step=step,
                measured=measured,
                join=join,
                codec=self.exchange.observer.codec,
                meets=self._ways.most_common(1)[0][0],
                buckets=[_means(account, measured) for account in meter.accounts if account.raw],
                span=round(meter.span / measured, SECONDS),
                room=round(meter.room / measured, SECONDS),
                step_seconds=round(self._seconds / measured, SECONDS),
                rate=network.rate,
                rtt=network.rtt,
            )
        ]
        if self._asks:
            self._asks = False
            found += self._priced()
        self._meter = ExchangeMeter.over(self.exchange.layers)
        if self.exchange.observer.meter is not None:
            self.exchange.observer.meter = self._meter
        self._measured, self._seconds = 0, 0.0
        self._ways.clear()
        return found

    def _priced(self) -> list[CodecPriced]:
        wired = self.exchange.observer.wire_bytes > 0
        # raw bytes are those of float32
        elements = sum(account.raw for account in self._meter.accounts) / 4 / self._measured
        found = prices(elements, len(self.exchange.peers) + 1, wired)
        return [
            CodecPriced(at=time.time(), codec=p.codec, encode=p.encode, decode=p.decode, wire=p.wire, hops=p.hops)
            for p in found
        ]


def _means(account: BucketAccount, measured: int) -> BucketFigures:
    return BucketFigures(
        layers=account.layers,
        raw=account.raw / measured,
        sent=account.sent / measured,
        wire=account.wire / measured,
        encode=round(account.encode / measured, SECONDS),
        transfer=round(account.transfer / measured, SECONDS),
        wait=round(account.wait / measured, SECONDS),
        decode=round(account.decode / measured, SECONDS),
        gradient=account.gradient / measured,
        residual=account.residual / measured,
    )
