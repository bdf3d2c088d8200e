"""What an exchange costs and decides, for those who record it. An exchange and those inside it share one observer.

Exchanges, aggregators and the guard write; progress, bucket timers and the bench read. Nothing here changes what is
exchanged. Only the training thread uses an observer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from shoal.core.clock import now
from shoal.sync.meter import ExchangeMeter
from shoal.wire.bucket import GradientBucket


@dataclass(frozen=True)
class GuardTightened:
    """What the convergence guard found after every k steps, and what it did."""

    cosine: float
    budget: float
    steps: int
    action: str
    ratio: float | None = None


@dataclass(frozen=True)
class CodecSwitched:
    """What gradients travel as from the next step on, in which order they leave, or how long rounds are; and why."""

    codec: str
    reason: str
    steps: dict[str, float] = field(default_factory=dict)
    """Codec -> seconds a step, by the model; empty name: no codec, as measured."""


ExchangeDecision = GuardTightened | CodecSwitched


class ExchangeObserver:
    """Counters of one worker since the exchange was opened, decisions not yet recorded, and the meter if one runs."""

    def __init__(self) -> None:
        self.raw_bytes = 0
        """Gradients as float32."""
        self.sent_bytes = 0
        """Payloads that stood for them."""
        self.wire_bytes = 0
        """Bytes put on sockets."""
        self.encode_seconds = 0.0
        """Spent in codecs while buckets start."""
        self.wait_seconds = 0.0
        """Spent waiting for other workers' payloads."""
        self.codec = ""
        """What gradients travel as: the wire terms of the plan, as text."""
        self.aggregation = "sum"
        """How the payloads of all workers are combined: sum, gather or twostage."""
        self.own_meter: ExchangeMeter | None = None
        """The meter of an exchange that measures itself."""
        self.accepts_meter = True
        """Whether others may attach a meter; not while an exchange measures itself."""
        self._meter: ExchangeMeter | None = None
        self._decisions: list[ExchangeDecision] = []

    def begin_plan(self) -> None:
        """Go on counting for the exchange of another plan, which measures other buckets."""
        self.codec, self.aggregation = "", "sum"
        self.own_meter, self._meter, self.accepts_meter = None, None, True

    @property
    def meter(self) -> ExchangeMeter | None:
        """The meter that somebody outside has attached; it takes the figures of each bucket of a measured step."""
        return self._meter

    @meter.setter
    def meter(self, meter: ExchangeMeter | None) -> None:
        self._meter = meter if self.accepts_meter else None

    @property
    def _active_meter(self) -> ExchangeMeter | None:
        return self._meter if self.own_meter is None else self.own_meter

    def bucket_started(
        self, index: int, bucket: GradientBucket, began: float, sent: int, wire: int, residual: Tensor | None = None
    ) -> None:
        """Bucket `index`, full since `began`, has left as `sent` bytes; `residual` of it waits for later steps."""
        if (meter := self._active_meter) is not None:
            meter.left(index, began, bucket.raw, sent, wire)
            meter.weigh(index, bucket.flat[: bucket.plan.payload], residual)

    def bucket_finished(
        self, index: int, began: float, wait: float | None = None, sent: int = 0, wire: int = 0
    ) -> None:
        """Bucket `index`, asked for at `began`, holds its result after a wait of `wait` seconds (None: all since)."""
        if (meter := self._active_meter) is not None:
            meter.finished(index, began, now() - began if wait is None else wait, sent, wire)

    def look(self, is_done: Callable[[int], bool]) -> None:
        """Note which buckets have arrived meanwhile."""
        if (meter := self._active_meter) is not None:
            meter.look(is_done)

    def report(self, decision: ExchangeDecision) -> None:
        """Keep a decision for the record, which adds the step it was made in."""
        self._decisions.append(decision)

    def withdraw(self, decision: ExchangeDecision | None) -> None:
        """Drop a decision of an exchange that did not count."""
        # by identity: two windows may have found the same
        self._decisions = [each for each in self._decisions if each is not decision]

    def take_decisions(self) -> list[ExchangeDecision]:
        """Return the decisions since the last call."""
        taken, self._decisions = self._decisions, []
        return taken
