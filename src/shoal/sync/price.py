"""What an exchange costs, as arithmetic: pure and without torch, for those that decide and those that only look.

    transfer = bytes on sockets / rate + one-way latencies + waiting for others
    visible  = what of it the backward pass does not hide
    step     = computing + encode + decode + visible, less what fewer bytes free of the processor

A model: it knows no queues and takes the links of a worker for one. Say "about" of what it says.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class NetworkEstimate:
    """The way from a worker to the others; None where it is not known."""

    rate: float | None = None
    """Bytes a second."""
    rtt: float | None = None
    """Seconds of a round trip."""

    def seconds(self, wire: float, hops: int) -> float:
        """To bring `wire` bytes over, with so many latencies on the way; nothing where nothing is on sockets."""
        if not wire:
            return 0.0
        return (wire / self.rate if self.rate else 0.0) + hops * (self.rtt or 0.0) / 2


def merged(known: Iterable[NetworkEstimate]) -> NetworkEstimate:
    """What several know together: the fastest rate and the longest round trip."""
    found = list(known)
    rates, trips = [n.rate for n in found if n.rate], [n.rtt for n in found if n.rtt]
    return NetworkEstimate(max(rates, default=None), max(trips, default=None))


@dataclass(frozen=True)
class CodecPrice:
    """One codec in one run; seconds and bytes of a worker a step."""

    codec: str
    """As text; empty: values as they are."""
    encode: float
    decode: float
    wire: float
    hops: int


@dataclass(frozen=True)
class MeasuredStep:
    """What a run's steps were like."""

    price: CodecPrice
    step: float
    span: float
    """Seconds in which anything was under way."""
    wait: float
    """Of the span: what was not hidden."""
    room: float
    """What a longer transfer could hide behind: from the first bucket's leaving to the last one's being full."""
    buckets: int = 1
    contended: float = 0.0
    """Of the computing: seconds in which the worker could have run and had no core, for the links had it."""

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
    """How long a step would take with `other` in place of what was measured."""
    now = measured.price
    late = max(0.0, measured.span - network.seconds(now.wire, now.hops))  # others come late whatever travels
    transfer = late + network.seconds(other.wire, other.hops)
    # sockets and their keys take processor time by the byte, and where cores are few the computing waits for it
    freed = min(measured.contended, measured.computing) * (1 - min(1.0, other.wire / now.wire)) if now.wire else 0.0
    # the last bucket leaves when the pass has ended: nothing hides it
    visible = max(transfer - max(measured.room, 0.0), transfer / max(1, measured.buckets))
    return StepForecast(other.codec, measured.computing - freed + other.encode + other.decode + visible, transfer)


def summed(size: float, workers: int) -> float:
    """Bytes a worker sends so that everybody has the sum of `size` bytes each."""
    return 2 * (workers - 1) * size / workers


def summing_hops(workers: int) -> int:
    """Latencies on the way of a sum: one between two, round the ring otherwise."""
    return 1 if workers <= 2 else 2 * (workers - 1)
