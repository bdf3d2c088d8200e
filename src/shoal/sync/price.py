"""What an exchange costs and which codec to take, as arithmetic: pure and without torch, also for viewers.

    transfer = bytes on sockets / rate + one-way latencies + waiting for others
    visible  = the part that the backward pass does not hide
    step     = computing + encode + decode + visible, less the processor time that fewer bytes free

A model: it knows no queues and takes all links of a worker for one. Texts say "about" of its figures.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class NetworkEstimate:
    """The links from a worker to the others; None where a figure is not known."""

    rate: float | None = None
    """Bytes a second."""
    rtt: float | None = None
    """Seconds of a round trip."""

    def seconds(self, wire: float, hops: int) -> float:
        """Return the time of `wire` bytes and `hops` latencies; 0 if nothing crosses a socket."""
        if not wire:
            return 0.0
        return (wire / self.rate if self.rate else 0.0) + hops * (self.rtt or 0.0) / 2


def merged(known: Iterable[NetworkEstimate]) -> NetworkEstimate:
    """Combine several estimates: the fastest rate and the longest round trip."""
    found = list(known)
    rates, trips = [n.rate for n in found if n.rate], [n.rtt for n in found if n.rtt]
    return NetworkEstimate(max(rates, default=None), max(trips, default=None))


@dataclass(frozen=True)
class CodecPrice:
    """One codec in one run; seconds and bytes per worker and step."""

    codec: str
    """As text; empty: no codec."""
    encode: float
    decode: float
    wire: float
    hops: int


@dataclass(frozen=True)
class MeasuredStep:
    """The mean step of a run."""

    price: CodecPrice
    step: float
    span: float
    """Seconds in which anything was in transfer."""
    wait: float
    """The part of the span that was not hidden."""
    room: float
    """What a longer transfer could hide behind: from the start of the first bucket until the last one is full."""
    buckets: int = 1
    contended: float = 0.0
    """Of the computing: seconds in which the worker waited for a core that the links used."""

    @property
    def computing(self) -> float:
        return max(0.0, self.step - self.price.encode - self.price.decode - self.wait)


@dataclass(frozen=True)
class StepForecast:
    """The same step with another codec."""

    codec: str
    step: float
    transfer: float


def forecast(measured: MeasuredStep, other: CodecPrice, network: NetworkEstimate) -> StepForecast:
    """Return how long a step would take with `other` in place of what was measured."""
    now = measured.price
    late = max(0.0, measured.span - network.seconds(now.wire, now.hops))  # other workers are late whatever travels
    transfer = late + network.seconds(other.wire, other.hops)
    # sockets and encryption take processor time per byte, which the computing waits for where cores are few
    freed = min(measured.contended, measured.computing) * (1 - min(1.0, other.wire / now.wire)) if now.wire else 0.0
    # the last bucket starts when the pass has ended, so nothing hides it
    visible = max(transfer - max(measured.room, 0.0), transfer / max(1, measured.buckets))
    return StepForecast(other.codec, measured.computing - freed + other.encode + other.decode + visible, transfer)


def summed(size: float, workers: int) -> float:
    """Return the bytes a worker sends in an all-reduce of `size` bytes."""
    return 2 * (workers - 1) * size / workers


def summing_hops(workers: int) -> int:
    """Return the latencies of an all-reduce: one between two workers, those of the ring otherwise."""
    return 1 if workers <= 2 else 2 * (workers - 1)


GAIN = 0.9
"""A codec must make the step at most this share of the step without one."""
NEAR = 1.1
"""A codec that loses less is taken if its step is within this factor of the fastest."""


@dataclass(frozen=True)
class CodecChoice:
    """The chosen codec, and why."""

    codec: str
    """Empty: none."""
    reason: str
    steps: dict[str, float]


def choose_codec(measured: MeasuredStep, prices: Sequence[CodecPrice], network: NetworkEstimate) -> CodecChoice:
    """Choose by what all workers measured alike: clearly faster than no codec, and of the fastest the gentlest.

    `measured` is a step without a codec; `prices` are those of the candidates, those that lose least first.
    """
    found = {"": measured.step}
    if network.rate is None:
        return CodecChoice("", "the network's rate is not known, because too little went over it", found)
    forecasts = [forecast(measured, price, network) for price in prices]
    found |= {each.codec: each.step for each in forecasts}
    clear = [each for each in forecasts if each.step <= GAIN * measured.step]
    rate = f"{network.rate * 8 / 1e6:.0f} Mbit/s"
    if not clear:
        best = min(forecasts, key=lambda each: each.step, default=None)
        return CodecChoice(
            "", f"no codec makes a step clearly shorter at about {rate}{_forecast_text(best, measured)}", found
        )
    fastest = min(each.step for each in clear)
    chosen = next(each for each in clear if each.step <= NEAR * fastest)
    return CodecChoice(chosen.codec, f"at about {rate}{_forecast_text(chosen, measured)}", found)


def _forecast_text(other: StepForecast | None, measured: MeasuredStep) -> str:
    if other is None:
        return ""
    return f", {other.codec} makes a step of {measured.step * 1e3:.1f} ms about {other.step * 1e3:.1f} ms"
