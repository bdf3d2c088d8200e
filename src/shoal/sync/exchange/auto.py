"""Chooses a codec after some steps without one: `wire(auto)`, between hosts.

    exchanges 1, 2      not measured: allocations, caches
    exchanges 3 … 8     measured: the step, the transfer, what of it was hidden; the links' rate and round trip
    exchange 9          the figures of all workers are averaged by the exchange itself
    from 10 on          what all workers chose alike (sync/price.py)

No message is needed: the averages are the same bits everywhere, and the choice is a pure function of them. Do not use
it inside one host, where nothing crosses a socket.

Figures of some members say nothing of others: with the first exchange of a new view, all begin to measure anew,
newcomers too. A codec that has been chosen stays, and newcomers take it over, because its residuals would be lost with
it. The choice of no codec is made again: a run that began on one machine may go on over slow links.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from shoal.core.clock import delayed, now
from shoal.sync.averages import WorkerFigures, pack, unpack, width
from shoal.sync.engine.base import AllReduceEngine
from shoal.sync.exchange.base import GradientExchange, WrappingExchange
from shoal.sync.meter import ExchangeMeter
from shoal.sync.observer import CodecSwitched
from shoal.sync.price import CodecPrice, choose_codec, summing_hops
from shoal.wire.bucket import BucketPlan, BucketSpace, GradientBucket

SKIPPED, MEASURED = 2, 6
LAST = SKIPPED + MEASURED
"""Exchanges before the one that carries the figures."""
CHOICE = "auto.choice"
"""Name in the state: the number of the chosen candidate, from 1 on, or one of the two below."""
MEASURING, NO_CODEC = -1, 0


@dataclass(frozen=True)
class CodecCandidate:
    """A codec that may be chosen."""

    price: CodecPrice
    """By a trial on this worker."""
    build: Callable[[Mapping[int, GradientBucket]], GradientExchange]
    """Makes the exchange that codes these buckets."""


class AutoCodecExchange(WrappingExchange):
    """Around an exchange without a codec, until that is replaced by a candidate's.

    `candidates` is called once the buckets are known, and again when the number of workers has changed.
    """

    def __init__(
        self,
        inner: GradientExchange,
        engine: AllReduceEngine,
        workers: Callable[[], int],
        candidates: Callable[[Sequence[BucketPlan]], list[CodecCandidate]],
    ) -> None:
        """`engine` sums the figures; `workers` returns how many workers there are now."""
        super().__init__(inner)
        self._engine, self._workers, self._make_candidates = engine, workers, candidates
        self._started: list[int] = []
        self._unfinished: set[int] = set()
        """Buckets of this exchange, and those that are not finished."""
        self._began: list[float] = []
        """When each exchange since the measuring began has begun, including the one under way."""
        self._spans: list[float] = []
        """What the meter showed when each measured exchange began."""
        self._delayed = 0.0
        """How long the thread had waited for a core when the first of them began."""
        self._generation = -1
        """The view in which they are measured."""
        self._own: ExchangeMeter | None = None
        self._next: GradientExchange | None = None
        self._choice = MEASURING
        self._used = self._carries_figures = False
        self._decision: CodecSwitched | None = None
        """What was decided with the exchange under way."""
        self._update_observer()

    def _update_observer(self) -> None:
        """Let others measure only from the exchange after the choice on."""
        self.observer.accepts_meter = self._choice != MEASURING and self._decision is None

    def open_numbered(self, plans: Mapping[int, BucketPlan]) -> dict[int, GradientBucket]:
        self._buckets = buckets = self.inner.open_numbered(plans)
        self._plans = list(plans.values())
        self._candidates, self._candidates_for = self._make_candidates(self._plans), self._workers()
        space = BucketSpace(width(MEASURED, 2 * len(self._candidates)), torch.float64, torch.device("cpu"))
        ((self._leaving, self._result),) = self._engine.open([space])
        return buckets

    def prepare(self) -> None:
        # between two exchanges: in the one that decides, buckets are still being finished
        self._switch()
        super().prepare()
        self._started, self._unfinished, self._carries_figures, self._decision = [], set(), False, None
        if self._choice == NO_CODEC and self.session.view.generation != self._generation:
            self._choice = MEASURING
        if self._choice == MEASURING:
            self._count_exchange()
            if self._carries_figures:
                self._engine.prepare()
        self._update_observer()

    def _switch(self) -> None:
        if self._next is not None:
            self.inner, self._next = self._next, None

    def _count_exchange(self) -> None:
        """Find out which exchange of the view this is; again if members change before it has begun."""
        if self.session.view.generation != self._generation:
            self._restart()
        # not used: the members changed before a bucket started, and the same exchange begins again
        elif self._used:
            self._began.append(now())
        else:
            self._began[-1] = now()
        self._used, self._carries_figures = False, len(self._began) == LAST + 1
        number = len(self._began) - 1 - SKIPPED
        self._delayed = delayed() if number == 0 else self._delayed
        if number == 0 and self._own is None:
            self._own = self.observer.own_meter = ExchangeMeter.over(self.layers)
        elif self._carries_figures:
            self.observer.own_meter = None
        if self._own is not None and 0 <= number < MEASURED:  # again, if members changed before it had begun
            self._spans[number:] = [self._own.span]

    def _restart(self) -> None:
        """Measure anew; what a candidate sends depends on the number of workers."""
        if self._workers() != self._candidates_for:
            self._candidates, self._candidates_for = self._make_candidates(self._plans), self._workers()
        self._generation, self._began = self.session.view.generation, [now()]
        self._own = self.observer.own_meter = None

    def start(self, index: int) -> None:
        # before the first bucket on every worker: sums start in the same order everywhere
        if self._carries_figures and not self._used:
            self._leaving.copy_(self._figures())
            self._engine.start(0)
        self._used = True
        self._started.append(index)
        self._unfinished.add(index)
        super().start(index)

    def finish(self, index: int) -> None:
        super().finish(index)
        self._unfinished.discard(index)
        if not self._unfinished and self._carries_figures and self._decision is None:
            self._engine.finish(0)
            self._decide()

    def _figures(self) -> Tensor:
        """Return this worker's part of the averages."""
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
            network=self.inner.estimate_network(),
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
        choice = choose_codec(measured, prices, network)
        names = [candidate.price.codec for candidate in self._candidates]
        self._decision = CodecSwitched(choice.codec, choice.reason, choice.steps)
        self._choose(1 + names.index(choice.codec) if choice.codec in names else NO_CODEC)
        self.observer.report(self._decision)

    def _choose(self, number: int) -> None:
        """Use a candidate, or none, from the next exchange on; nothing is measured any more."""
        self._choice, self._own = number, None
        self._next = self._candidates[number - 1].build(self._buckets) if number > NO_CODEC else None
        self._update_observer()

    @property
    def retryable(self) -> bool:  # type: ignore[override]
        return super().retryable and self._engine.retryable

    def is_complete(self) -> bool:
        return super().is_complete() and (not self._carries_figures or self._engine.is_complete())

    def retry(self) -> None:
        """Other members make this exchange, so it is the first of theirs, and nothing is decided by it."""
        super().retry()
        if self._carries_figures:
            self._engine.abandon()
            self._choice, self._next, self._carries_figures = MEASURING, None, False
            self.observer.withdraw(self._decision)
            self._decision = None
        # a chosen codec stays: its residuals would be lost with it
        if self._choice in (MEASURING, NO_CODEC):
            self._choice = MEASURING
            self._restart()
        self._unfinished = set(self._started)
        self._update_observer()

    def finish_locally(self) -> None:
        super().finish_locally()
        if self._carries_figures:
            self._engine.finish_locally()

    def shared(self) -> dict[str, Tensor]:
        return super().shared() | {CHOICE: torch.tensor([self._choice])}

    def load(self, state: Mapping[str, Tensor]) -> None:
        number = int(state.get(CHOICE, torch.tensor([MEASURING])))
        if number != MEASURING and self._choice == MEASURING:
            self._choose(number)
            # at once, so that a newcomer's first exchange is coded as the others' is
            self._switch()
        super().load(state)
