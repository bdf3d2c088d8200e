"""`cluster.toml`: the measured links and speeds of a cluster, which `shoal probe` writes and the planner reads."""

import time
from pathlib import Path

import msgspec

from shoal.core.errors import UsageError


class LinkMeasurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One direction between two workers."""

    sender: int
    receiver: int
    rtt_ms: float
    """The fastest round trip of a few bytes; the fastest, because a busy worker can only make it longer."""
    rate_mbit: float
    """Payload per second of one TCP connection."""


class SpeedMeasurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How fast a worker computes while the others are idle."""

    rank: int
    host: str
    address: str
    gflops: float
    """Rate of a 512 x 512 float32 matrix product, with the worker's number of threads."""
    threads: int


class ClusterMeasurement(msgspec.Struct, frozen=True):
    """All measurements of a cluster that the planner uses."""

    workers: list[SpeedMeasurement]
    links: list[LinkMeasurement]


class _ClusterTables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    worker: list[SpeedMeasurement]
    link: list[LinkMeasurement] = []


def as_toml(cluster: ClusterMeasurement) -> str:
    """Return the text of `cluster.toml`: one table per worker and per link."""
    lines = [f"# Measured by `shoal probe` on {time.strftime('%Y-%m-%d %H:%M:%S')}."]
    for name, rows in (("worker", cluster.workers), ("link", cluster.links)):
        for row in rows:
            lines.append(f"\n[[{name}]]")
            lines += [f"{key} = {_value(value)}" for key, value in msgspec.structs.asdict(row).items()]
    return "\n".join(lines) + "\n"


def read_cluster(path: Path) -> ClusterMeasurement:
    """Read what `as_toml` wrote; refuse a file whose links do not connect its workers."""
    try:
        found = msgspec.toml.decode(path.read_bytes(), type=_ClusterTables)
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}; write it with shoal probe") from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        told = " ".join(str(error).split())
        raise UsageError(f"{str(path)!r} is no cluster: {told}; write it with shoal probe") from None
    ranks = sorted(worker.rank for worker in found.worker)
    pairs = sorted((link.sender, link.receiver) for link in found.link)
    good = all(link.rtt_ms >= 0 and link.rate_mbit > 0 for link in found.link)  # NaN compares false too
    # The planner takes the slowest link, so one that is missing would make it promise too much.
    every = [(a, b) for a in ranks for b in ranks if a != b]
    if not ranks or ranks != list(range(len(ranks))) or pairs != every or not good:
        raise UsageError(f"{str(path)!r} does not hold every link between its workers; measure again with shoal probe")
    return ClusterMeasurement(found.worker, found.link)


def _value(value: object) -> str:
    return msgspec.json.encode(value).decode()
