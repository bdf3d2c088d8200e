"""What workers measured, as rows of numbers that an exchange may add up: everybody then reads the same from the sum.

    pack(figures, workers)      of each worker, divided by their number
    unpack(sum of all rows)     the mean worker, and the network as its bytes show it

What waits for slow workers and what waits for bytes is told apart by who waits: whoever comes last to an exchange waits
for bytes alone. The shortest of all workers' times is found by a mean, too: that of a high negative power.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.sync.price import CodecPrice, MeasuredStep, NetworkEstimate

POWER = -16.0
"""The power mean of p numbers is p ** (1/16) times the least at the most, and the least itself if all are equal."""
SHORTEST = 1e-6
TELLING = 64 << 10
"""Bytes a step from which on the time they took tells a rate."""
HEAD = 7


@dataclass(frozen=True)
class WorkerFigures:
    """Of one worker, a step."""

    step: float
    wait: float
    room: float
    wire: float
    contended: float
    spans: Sequence[float]
    """Of each exchange: seconds in which anything was under way."""
    network: NetworkEstimate
    """As its links estimate it."""
    costs: Sequence[float]
    """Whatever else is to be averaged."""


def pack(own: WorkerFigures, workers: int) -> list[float]:
    """This worker's row."""
    # not the rate but what a byte takes, so that the slow ones count; a worker that knows none says infinity
    byte = 1 / own.network.rate if own.network.rate else float("inf")
    row = [own.step, own.wait, own.room, own.wire, own.contended, byte, own.network.rtt or 0.0]
    row += [*own.spans, *(max(span, SHORTEST) ** POWER for span in own.spans), *own.costs]
    return [number / workers for number in row]


def width(exchanges: int, costs: int) -> int:
    """Numbers of a row."""
    return HEAD + 2 * exchanges + costs


def unpack(
    row: Sequence[float], exchanges: int, hops: int, buckets: int
) -> tuple[MeasuredStep, NetworkEstimate, list[float]]:
    """The mean worker, the network, and the mean costs."""
    step, wait, room, wire, contended, byte, trip = row[:HEAD]
    spans, powers = row[HEAD : HEAD + exchanges], row[HEAD + exchanges : HEAD + 2 * exchanges]
    span, least = sum(spans) / exchanges, sum(power ** (1 / POWER) for power in powers) / exchanges
    rate, busy = (1 / byte if byte not in (0.0, float("inf")) else None), least - hops * trip / 2
    if wire >= TELLING and busy > 0:
        rate = wire / busy
    measured = MeasuredStep(
        CodecPrice("", 0.0, 0.0, wire, hops), step, max(span, least), wait, room, buckets, contended
    )
    return measured, NetworkEstimate(rate, trip or None), list(row[HEAD + 2 * exchanges :])
