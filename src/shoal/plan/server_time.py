"""Predict a synchronous step through parameter servers from the busiest link.

    transfer = 2 * bytes of the busiest link / rate        gradients up, then sums down
             + 2 * round trip                              request and sum; then all tell each other what they hold
    step     = computing of the batch + transfer

Cites: Yan, Ruwase, He & Chilimbi, "Performance Modeling and Scalability Optimization of Distributed Deep Learning
Systems", KDD 2015. It takes every link for as fast as the slowest, and nothing for hidden behind computing: where a
model has many buckets and computes about as long as they travel, a step is shorter.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.errors import UsageError
from shoal.sync.price import NetworkEstimate


@dataclass(frozen=True)
class MeasuredComputing:
    """What a recorded run computed in a step, without exchanges."""

    batch: float
    """Samples of one worker."""
    seconds: float


def busiest_link(size: float, workers: int, shards: int, hosts: int) -> float:
    """Return the bytes that cross the busiest link, in one direction, while all gradients of `size` bytes go up.

    Servers are on the hosts behind those of the workers, and then on these, as `launch/lab_placement.py` puts them.
    """
    slice_size = size / shards
    servers = Counter((workers + number) % hosts for number in range(shards))
    # A worker on the server's own host does not use its link.
    into = [slice_size * count * (workers - (host < workers)) for host, count in servers.items()]
    out = [size - slice_size * servers[host] for host in range(workers)]
    # All links work at the same time, so the busiest one ends last.
    return max(*into, *out)


def transfer_seconds(size: float, workers: int, shards: int, hosts: int, network: NetworkEstimate) -> float:
    """Return how long gradients of `size` bytes take to the servers, and their sum back."""
    return 2 * network.seconds(busiest_link(size, workers, shards, hosts), 0) + 2 * (network.rtt or 0.0)


def computing_seconds(measured: Sequence[MeasuredComputing], batch: int | None) -> float:
    """Return the computing of a batch: a line through what was measured, fixed cost and cost of a sample.

    One measurement, or several of the same batch, tell about that batch alone.
    """
    known = sorted({round(each.batch) for each in measured})
    mean_batch = sum(each.batch for each in measured) / len(measured)
    mean_seconds = sum(each.seconds for each in measured) / len(measured)
    # No line can be drawn through one point.
    if len(known) == 1:
        if batch not in (None, *known):
            raise UsageError(f"--batch {batch}: the run computed {known[0]} a step; give a second run of another batch")
        return mean_seconds
    if batch is None:
        raise UsageError(f"the runs computed {', '.join(map(str, known))} samples a step: which is meant? --batch N")
    spread = sum((each.batch - mean_batch) ** 2 for each in measured)
    slope = sum((each.batch - mean_batch) * (each.seconds - mean_seconds) for each in measured) / spread
    # Far below what was measured the line may go under zero.
    return max(0.0, mean_seconds + slope * (batch - mean_batch))
