"""Where the time of a step goes, and telling the record and the board.

load | forward | backward (with exchange and packing inside) | update | other      -> one Step event
"""

import time
from collections.abc import Callable, Mapping

from shoal.core.clock import now
from shoal.core.events import SECONDS, EventSink, LayerTimes, RunEvent, StepFinished, TrafficCounted, WarningRaised
from shoal.groups.base import WorkerGroup
from shoal.hosts.status_board import WorkerState, pass_gate
from shoal.lab.speed import rest
from shoal.sync.cost import ExchangeCost
from shoal.sync.exchange.base import GradientExchange
from shoal.train.balance import ShareBalancer
from shoal.train.buckets import BucketTimer
from shoal.train.layers import LayerTimer

TRAFFIC_SECONDS = 2.0

Totals = tuple[float, float, int, int, int, float, float]
"""Since the run began: seconds of packing and of waiting; bytes raw, sent, and on sockets; seconds of transfer, and
those that were exposed."""


class StepProgress:
    """Counts steps and samples of one worker, and times their phases."""

    def __init__(self, sink: EventSink, group: WorkerGroup, speed: float = 1.0) -> None:
        self._group = group
        self.sink, self.board, self.slot, self.seconds, self.speed = sink, group.board, group.slot, group.seconds, speed
        self.step = 0
        self.epoch = 0
        self.samples = 0
        self.has_loader = False
        self.balancer: ShareBalancer | None = None
        self.reports: list[Callable[[], RunEvent | None]] = []
        """What else is told now and then: totals so far."""
        self.stood_back: Mapping[str, float] = {}
        """Another run -> seconds in which it went first on the link."""
        self._spent: list[tuple[ExchangeCost, GradientExchange]] = []
        self._layers: list[LayerTimer] = []
        self._buckets: list[BucketTimer] = []
        self._caller: object = None
        self._opened: float | None = None
        self._traffic = now()
        self._stepped_at: float | None = None
        self._update = 0.0
        self._clear()

    def watch(
        self,
        spent: ExchangeCost,
        exchange: GradientExchange,
        layers: LayerTimer | None = None,
        buckets: BucketTimer | None = None,
    ) -> None:
        """Include what one exchange spends, and what its layers take."""
        self._spent.append((spent, exchange))
        self._layers += [layers] if layers is not None else []
        self._buckets += [buckets] if buckets is not None else []

    def replace(self, before: GradientExchange, exchange: GradientExchange, buckets: BucketTimer | None) -> None:
        """Another plan: `exchange`, which goes on with the counters of the one before, has other buckets."""
        self._spent = [(spent, exchange if each is before else each) for spent, each in self._spent]
        kept = [timer for timer in self._buckets if timer.exchange is not before]
        self._buckets = kept + ([buckets] if buckets is not None else [])

    def load_began(self, at: float | None = None) -> None:
        """The script has asked for a batch: now, or at that time."""
        time_ = now() if at is None else at
        if self._stepped_at is not None:
            self._close(time_)
        if self._opened is None:
            self._opened = time_
        self._load_from = time_
        self.board.note(self.slot, WorkerState.loading)

    def load_ended(self, samples: int) -> None:
        self._batch_at = now()
        self._load += self._batch_at - self._load_from
        self._samples += samples
        self.board.note(self.slot, WorkerState.computing)

    def forward_began(self, model: object) -> None:
        """What the script did since it had the batch is its forward pass too; a model inside a model is not."""
        if self._opened is not None and self._stepped_at is None and (self._caller is None or self._caller is model):
            self._caller = model
            self._forward_from = self._batch_at or now()
            self._batch_at = 0.0

    def forward_ended(self, model: object) -> None:
        if self._caller is not model:
            return
        time_ = now()
        self._caller = None
        self._forward += time_ - self._forward_from
        for layers in self._layers:
            layers.forward_ended(time_)

    @property
    def stepped(self) -> bool:
        """Whether this step's optimizer step was made, and the step not closed yet."""
        return self._stepped_at is not None

    @property
    def samples_now(self) -> int:
        """Samples so far, with those of the step that is not closed yet."""
        return self.samples + self._samples

    def counted(self, samples: int) -> None:
        """The script said how many samples this step has."""
        self._samples += samples

    def exchange_began(self) -> None:
        """In a step without a loader nothing else tells when it began."""
        if self._opened is None:
            self._opened = now()

    def update_began(self) -> None:
        if self.speed < 1:
            # before the update is timed: the sleep stands for forward and backward
            self._slow_down()
        self._update_from, self._spent_before = now(), self.exchanging()
        if self._opened is None:
            self._opened = self._update_from
        self.board.note(self.slot, WorkerState.updating)

    def update_ended(self, first: bool) -> None:
        """`first`: of several optimizers, one counts the steps."""
        time_, spent = now(), self.exchanging()
        # an optimizer with a closure runs backward passes inside its step
        self._update += time_ - self._update_from - (spent - self._spent_before)
        if first or self._stepped_at is not None:
            self._stepped_at, self._spent_at_step = time_, spent
            if first and not self.has_loader:
                self._close(time_)
                # without a loader nothing else tells when the next step begins
                self._opened = self._batch_at = time_
        self.board.note(self.slot, WorkerState.computing)

    def warn(self, text: str) -> None:
        """Something the user should know, in one line."""
        self.sink.emit(WarningRaised(at=time.time(), text=text))

    def updated(self, seconds: float) -> None:
        """A part of an update was made outside of `optimizer.step`."""
        self._update += seconds
        if self._stepped_at is not None:  # what follows a step is not this
            self._stepped_at += seconds

    def pause(self) -> None:
        """What follows is not training: the end of a pass over the data, of an epoch, of the run."""
        if self._stepped_at is not None:
            self._close(now())
        self._opened = None
        self._clear()

    def _close(self, time_: float) -> None:
        opened, stepped = self._opened, self._stepped_at
        assert opened is not None
        assert stepped is not None
        totals, before = self._totals(), self._before
        seconds, other = time_ - opened, time_ - stepped - (totals[0] + totals[1] - self._spent_at_step)
        encode, wait = totals[0] - before[0], totals[1] - before[1]
        # what is left, and not measured: so all phases together are the step
        computing = max(0.0, seconds - self._load - self._update - other - encode - wait)
        forward = min(self._forward, computing)
        last = self._spent[-1][0] if self._spent else ExchangeCost()
        self.samples += self._samples
        if self.balancer is not None:
            self.balancer.add_step(self._samples, seconds - wait)  # a worker that waits for others is not slow
        self.sink.emit(
            StepFinished(
                at=time.time(),
                step=self.step,
                epoch=self.epoch,
                samples=self._samples,
                seconds=round(seconds, SECONDS),
                load=round(self._load, SECONDS),
                forward_backward=round(computing, SECONDS),
                exchange_wait=round(wait, SECONDS),
                encode=round(encode, SECONDS),
                update=round(self._update, SECONDS),
                other=round(other, SECONDS),
                forward=round(forward, SECONDS),
                backward=round(computing - forward, SECONDS),
                raw=totals[2] - before[2],
                sent=totals[3] - before[3],
                wire=totals[4] - before[4],
                ready=tuple(round(t, SECONDS) for t in last.ready),
                done=tuple(round(t, SECONDS) for t in last.done),
                transfer=round(totals[5] - before[5], SECONDS),
                exposed=round(totals[6] - before[6], SECONDS),
            )
        )
        self.step += 1
        self.board.progress(self.slot, self.epoch, self.step, self.samples, totals[3])
        self._opened = None
        self._clear(totals)
        for layers in self._layers:
            layers.step_ended(time_)
        for buckets in self._buckets:
            buckets.step_ended(time_, seconds)
            for event in buckets.decisions(self.step - 1):
                self.sink.emit(event)
        if time_ - self._traffic > TRAFFIC_SECONDS:
            self.tell_traffic()
            self.tell_layers()
            self.tell_buckets()
        # after the board shows this step: the launcher opens the gate by what it shows
        pass_gate(self.board, self.slot, self.step, self.seconds)

    def _slow_down(self) -> None:
        """Sleep as long as a slower processor would have computed on."""
        if self._opened is not None:
            spent = self.exchanging() - self._before[0] - self._before[1]
            time.sleep(rest(max(0.0, now() - self._opened - self._load - spent), self.speed))

    def _totals(self) -> Totals:
        encode, wait, raw, sent, wire, transfer, exposed = 0.0, 0.0, 0, 0, 0, 0.0, 0.0
        for spent, exchange in self._spent:
            encode, wait = encode + spent.encode, wait + spent.wait
            seen = exchange.observer
            raw, sent, wire = raw + seen.raw_bytes, sent + seen.sent_bytes, wire + seen.wire_bytes
            transfer, exposed = transfer + spent.transfer, exposed + spent.exposed
        return encode, wait, raw, sent, wire, transfer, exposed

    @property
    def sent_bytes(self) -> int:
        """Bytes of payloads that this worker has sent since the run began."""
        return self._totals()[3]

    def exchanging(self) -> float:
        """Seconds of packing and waiting since the run began."""
        seconds = 0.0
        for spent, _ in self._spent:
            seconds += spent.encode + spent.wait
        return seconds

    def _clear(self, totals: Totals | None = None) -> None:
        """Begin the next step's account."""
        self._load = self._update = self._forward = 0.0
        self._caller = None
        self._batch_at = self._forward_from = 0.0
        self._spent_before = self._spent_at_step = 0.0
        self._samples = 0
        self._load_from = self._update_from = 0.0
        self._stepped_at = None
        self._before = totals or self._totals()

    def tell_traffic(self) -> None:
        """Bytes per peer so far, and other totals."""
        self._traffic = now()
        for report in self.reports:
            if (event := report()) is not None:
                self.sink.emit(event)
        peers: dict[str, tuple[int, int]] = {}
        for _, exchange in self._spent:
            for peer in exchange.peers:
                sent, wire = peers.get(str(peer), (0, 0))
                peers[str(peer)] = (
                    # exchanges count bytes in all, so that each peer is said to have the same part of them
                    sent + exchange.observer.sent_bytes // len(exchange.peers),
                    wire + exchange.observer.wire_bytes // len(exchange.peers),
                )
        if peers:
            links = {str(peer): found for peer, found in self._group.link_estimates().items() if any(found)}
            stood_back = {run: round(seconds, SECONDS) for run, seconds in dict(self.stood_back).items()}
            self.sink.emit(
                TrafficCounted(at=time.time(), step=self.step, peers=peers, links=links, stood_back=stood_back)
            )

    def tell_layers(self) -> None:
        """Means by layer so far; several joins are told apart by their number."""
        backward: dict[str, float] = {}
        aggregation: dict[str, float] = {}
        gradient: dict[str, float] = {}
        for number, layers in enumerate(self._layers):
            before = f"{number}." if len(self._layers) > 1 else ""
            for sums, means in zip((backward, aggregation), layers.means(), strict=True):
                sums.update({before + layer: value for layer, value in means.items()})
            gradient.update({before + layer: value for layer, value in layers.take_norms().items()})
        samples = max((layers.samples for layers in self._layers), default=0)
        if samples:
            told = {"backward": backward, "aggregation": aggregation, "gradient": gradient}
            self.sink.emit(LayerTimes(at=time.time(), step=self.step, samples=samples, **told))

    def tell_buckets(self) -> None:
        """What was measured of every bucket since this was last told."""
        for number, buckets in enumerate(self._buckets):
            for event in buckets.figures(self.step, number):
                self.sink.emit(event)
