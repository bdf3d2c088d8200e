"""Workers' measurements as rows of numbers that an all-reduce adds up, so that all workers read the same averages.

    pack(figures, workers)      one worker's row, divided by the number of workers
    unpack(sum of all rows)     the mean worker, and the network as its bytes show it

Waiting for slow workers and waiting for bytes are told apart by who waits: the last worker to arrive waits for bytes
alone. The shortest of all workers' times is found by a mean, too: that of a high negative power.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.sync.price import CodecPrice, MeasuredStep, NetworkEstimate

POWER = -16.0
"""The power mean of p numbers is at most p ** (1/16) times the least, and the least itself if all are equal."""
SHORTEST = 1e-6
"""Seconds: shorter spans count as this long, so that no power overflows."""
LEAST = 1e-300
"""A power of seconds that is smaller counts as this."""
TELLING = 64 << 10
"""Bytes a step from which the time they took tells a rate."""
HEAD = 7
"""Numbers before the spans."""


@dataclass(frozen=True)
class WorkerFigures:
    """What one worker measured, per step."""

    step: float
    wait: float
    room: float
    wire: float
    contended: float
    spans: Sequence[float]
    """Of each exchange: seconds in which anything was in transfer."""
    network: NetworkEstimate
    """As this worker's links estimate it."""
    costs: Sequence[float]
    """Anything else to be averaged."""


def pack(own: WorkerFigures, workers: int) -> list[float]:
    """Return this worker's row."""
    # seconds per byte, not bytes per second, so that slow links count; infinity if the rate is not known
    byte = 1 / own.network.rate if own.network.rate else float("inf")
    row = [own.step, own.wait, own.room, own.wire, own.contended, byte, own.network.rtt or 0.0]
    row += [*own.spans, *(max(span, SHORTEST) ** POWER for span in own.spans), *own.costs]
    return [number / workers for number in row]


def width(exchanges: int, costs: int) -> int:
    """Return the length of a row."""
    return HEAD + 2 * exchanges + costs


def unpack(
    row: Sequence[float], exchanges: int, hops: int, buckets: int
) -> tuple[MeasuredStep, NetworkEstimate, list[float]]:
    """Return the mean worker, the network, and the mean costs.

    What is below 0 or no number counts as 0: a remote worker may add anything to the sums.
    """
    row = [max(0.0, number) for number in row]
    step, wait, room, wire, contended, byte, trip = row[:HEAD]
    spans, powers = row[HEAD : HEAD + exchanges], row[HEAD + exchanges : HEAD + 2 * exchanges]
    span, least = sum(spans) / exchanges, sum(max(power, LEAST) ** (1 / POWER) for power in powers) / exchanges
    rate, busy = (1 / byte if byte not in (0.0, float("inf")) else None), least - hops * trip / 2
    if wire >= TELLING and busy > 0:
        rate = wire / busy
    measured = MeasuredStep(
        CodecPrice("", 0.0, 0.0, wire, hops), step, max(span, least), wait, room, buckets, contended
    )
    return measured, NetworkEstimate(rate, trip or None), list(row[HEAD + 2 * exchanges :])
