"""Chooses a codec after some steps without one: `wire(auto)`, between hosts.

    exchanges 1, 2      not measured: allocations, caches
    exchanges 3 … 8     measured: the step, the transfer, what of it was hidden; the links' rate and round trip
    exchange 9          the figures of all workers are averaged by the exchange itself
    from 10 on          what all chose alike (sync/choosing.py)

Nobody is asked and nothing is broadcast: the averages are the same bits everywhere, and the choice a pure function of
them. Do not use it inside one host, where nothing crosses a socket.

What was measured with some members says nothing of others: with the first exchange that a new view makes, all begin to
measure anew, newcomers with them. A codec that has been chosen stays, and newcomers take it over: what it holds back
would be lost with it. That none was chosen does not: a run that began on one machine may go on over slow links.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from shoal.core.clock import delayed, now
from shoal.groups.base import LARGEST_WORD, Check
from shoal.sync.averages import WorkerFigures, pack, unpack, width
from shoal.sync.choosing import choose
from shoal.sync.engine.base import ExchangeEngine
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.meter import ExchangeMeter
from shoal.sync.news import CodecSwitched
from shoal.sync.price import CodecPrice, NetworkEstimate, summing_hops
from shoal.wire.bucket import BucketPlan, BucketSpace, GradientBucket

SKIPPED, MEASURED = 2, 6
LAST = SKIPPED + MEASURED
"""Exchanges before the one that carries the figures."""
CHOICE = "auto.choice"
"""The number of the candidate that was chosen, from 1 on; 0: no codec; MEASURING: nothing yet."""
MEASURING, NO_CODEC = -1, 0


@dataclass(frozen=True)
class CodecCandidate:
    """A codec that may be chosen."""

    price: CodecPrice
    """By the trial on this worker."""
    take: Callable[[Sequence[GradientBucket]], GradientExchange]
    """The exchange that codes these buckets."""


class AutoCodecExchange(GradientExchange):
    """Round an exchange without a codec; `candidates` are made once the buckets are known."""

    def __init__(
        self,
        inner: GradientExchange,
        engine: ExchangeEngine,
        workers: Callable[[], int],
        candidates: Callable[[Sequence[BucketPlan]], list[CodecCandidate]],
    ) -> None:
        """`engine` carries the figures; `workers`: how many they are now."""
        self.inner, self.session = inner, inner.session
        self._now, self._engine, self._workers, self._make = inner, engine, workers, candidates
        self._started: list[int] = []
        self._open: set[int] = set()
        """Buckets of this exchange, and those that are not finished."""
        self._began: list[float] = []
        """When the exchanges began since all began to measure, the one under way included."""
        self._spans: list[float] = []
        """What the meter showed when each measured exchange began."""
        self._delayed = 0.0
        """What the thread had waited for a core when the first of them began."""
        self._generation = -1
        """The view in which they are measured."""
        self._own: ExchangeMeter | None = None
        self._given: ExchangeMeter | None = None
        self._next: GradientExchange | None = None
        self._choice = MEASURING
        self._used = self._telling = False
        self._word: CodecSwitched | None = None
        """What was decided with the exchange under way."""

    @property
    def _measuring(self) -> bool:
        """Whether outsiders must not measure: until the exchange after the choice."""
        return self._choice == MEASURING or self._word is not None

    @property
    def peers(self) -> Sequence[int]:  # type: ignore[override]
        return self.inner.peers

    @property
    def meets(self) -> str:  # type: ignore[override]
        return self._now.meets

    @property
    def weight(self) -> float:
        return self.inner.weight

    @weight.setter
    def weight(self, weight: float) -> None:
        self.inner.weight = weight

    @property
    def meter(self) -> ExchangeMeter | None:
        """Of those that measure from outside; while this exchange measures by itself, they wait."""
        return self._given

    @meter.setter
    def meter(self, meter: ExchangeMeter | None) -> None:
        self._given = None if self._measuring else meter
        if not self._measuring:
            self._now.meter = meter

    @property
    def encoding(self) -> float:  # type: ignore[override]
        return self._now.encoding

    def open(self, plans: Sequence[BucketPlan]) -> list[GradientBucket]:
        self._buckets = buckets = self.inner.open(plans)
        self._plans, self._candidates, self._made = plans, self._make(plans), self._workers()
        space = BucketSpace(width(MEASURED, 2 * len(self._candidates)), torch.float64, torch.device("cpu"))
        ((self._leaving, self._result),) = self._engine.open([space])
        return buckets

    def prepare(self) -> None:
        self._switch()
        self._now.prepare()
        self._started, self._open, self._telling, self._word = [], set(), False, None
        if self._choice == NO_CODEC and self.session.view.generation != self._generation:
            self._choice = MEASURING
        if self._choice == MEASURING:
            self._look()
            if self._telling:
                self._engine.prepare()

    def _switch(self) -> None:
        if self._next is not None:
            self._now, self._next = self._next, None
            self.codec = self._now.codec

    def _look(self) -> None:
        """Which exchange of how many this is, in which view; once more if the members change before it has begun."""
        if self.session.view.generation != self._generation:
            self._restart()
        elif self._used:
            self._began.append(now())
        else:
            self._began[-1] = now()
        self._used, self._telling = False, len(self._began) == LAST + 1
        number = len(self._began) - 1 - SKIPPED
        self._delayed = delayed() if number == 0 else self._delayed
        if number == 0 and self._own is None:
            self._own = self.inner.meter = ExchangeMeter.over(self.layers)
        elif self._telling:
            self.inner.meter = None
        if self._own is not None and 0 <= number < MEASURED:  # once more, if members changed before it had begun
            self._spans[number:] = [self._own.span]

    def _restart(self) -> None:
        """Measure anew; what a candidate sends depends on how many they are."""
        if self._workers() != self._made:
            self._candidates, self._made = self._make(self._plans), self._workers()
        self._generation, self._began = self.session.view.generation, [now()]
        self._own = self.inner.meter = None

    def start(self, index: int) -> None:
        if self._telling and not self._used:
            self._leaving.copy_(self._figures())
            self._engine.start(0)
        self._used = True
        self._started.append(index)
        self._open.add(index)
        self._counting(lambda: self._now.start(index))

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
        if not self._open and self._telling and self._word is None:
            self._engine.finish(0)
            self._decide()
        if self._now.news:
            self.news, self._now.news = [*self.news, *self._now.news], ()

    def _figures(self) -> Tensor:
        """This worker's part of the averages."""
        meter = self._own
        assert meter is not None
        figures = WorkerFigures(
            # from the first measured exchange's beginning to the end of the step of the last: all spans lie in it
            step=(self._began[-1] - self._began[SKIPPED]) / MEASURED,
            wait=sum(account.wait for account in meter.accounts) / MEASURED,
            room=meter.room / MEASURED,
            wire=sum(account.wire for account in meter.accounts) / MEASURED,
            contended=(delayed() - self._delayed) / MEASURED,
            spans=[after - before for before, after in pairwise([*self._spans, meter.span])],
            network=self.inner.network(),
            costs=[cost for c in self._candidates for cost in (c.price.encode, c.price.decode)],
        )
        return torch.tensor(pack(figures, self._workers()), dtype=torch.float64)

    def _decide(self) -> None:
        hops, buckets = summing_hops(self._workers()), max(1, len(self._buckets))
        measured, network, costs = unpack(self._result.tolist(), MEASURED, hops, buckets)
        prices = [
            CodecPrice(c.price.codec, encode, decode, c.price.wire, c.price.hops)
            for c, encode, decode in zip(self._candidates, costs[::2], costs[1::2], strict=True)
        ]
        choice = choose(measured, prices, network)
        names = [candidate.price.codec for candidate in self._candidates]
        self._word = CodecSwitched(choice.codec, choice.reason, choice.steps)
        self._choose(1 + names.index(choice.codec) if choice.codec in names else 0)
        self.tell(self._word)

    def _choose(self, number: int) -> None:
        """From the next exchange on; nothing is measured any more."""
        self._choice, self._own = number, None
        self._next = self._candidates[number - 1].take(self._buckets) if number > 0 else None

    @property
    def repeatable(self) -> bool:  # type: ignore[override]
        return self._now.repeatable and self._engine.repeatable

    def whole(self) -> bool:
        return self._now.whole() and (not self._telling or self._engine.whole())

    def repeat(self) -> None:
        """Other members make this exchange, so it is the first of theirs, and nothing is decided by it."""
        self._now.repeat()
        if self._telling:
            self._engine.forget()
            self._choice, self._next, self._telling = MEASURING, None, False
            self.news, self._word = [each for each in self.news if each is not self._word], None
        if self._choice in (MEASURING, NO_CODEC):
            self._choice = MEASURING
            self._restart()
        self._open = set(self._started)

    def recover(self) -> None:
        self._now.recover()
        if self._telling:
            self._engine.recover()

    def network(self) -> NetworkEstimate:
        return self._now.network()

    def state(self) -> dict[str, Tensor]:
        return self._now.state()

    def shared(self) -> dict[str, Tensor]:
        return self._now.shared() | {CHOICE: torch.tensor([self._choice])}

    def load(self, state: Mapping[str, Tensor]) -> None:
        number = int(state.get(CHOICE, torch.tensor([MEASURING])))
        if number != MEASURING and self._choice == MEASURING:
            self._choose(number)
            self._switch()
        self._now.load(state)

    def gather(self, data: bytes, limit: int = LARGEST_WORD, check: Check | None = None) -> list[bytes]:
        return self.inner.gather(data, limit, check)
