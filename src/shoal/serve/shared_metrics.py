"""Counts of all processes of a server: each writes its own to a file, and the process that is asked adds them up.

What a process had counted when it ended stays in the sum, so that counters never fall.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from shoal.serve.metrics import LatencyHistogram, TrafficCounts, VersionMetrics

Key = tuple[str, int]
ENDED = "ended.json"


class MetricsRecord(msgspec.Struct, frozen=True):
    """The counts of one version, as a file holds them."""

    name: str
    number: int
    statuses: dict[int, int]
    counts: list[int]
    total: float
    rows: int
    batches: int
    failed_batches: int
    waited: float
    computed: float
    sizes: dict[int, int]
    traffic: TrafficCounts

    @classmethod
    def of(cls, key: Key, metrics: VersionMetrics) -> "MetricsRecord":
        latency = metrics.latency
        return cls(
            *key, dict(metrics.statuses), list(latency.counts), latency.total, metrics.rows, metrics.batches,
            metrics.failed_batches, metrics.waited, metrics.computed, dict(metrics.sizes), metrics.traffic,
        )  # fmt: skip

    def counted(self) -> VersionMetrics:
        return VersionMetrics(
            Counter(self.statuses), LatencyHistogram(self.counts, self.total), self.rows, self.batches,
            self.failed_batches, self.waited, self.computed, Counter(self.sizes), self.traffic,
        )  # fmt: skip


_DECODER = msgspec.json.Decoder(list[MetricsRecord])


def merge(many: Iterable[Mapping[Key, VersionMetrics]]) -> dict[Key, VersionMetrics]:
    """The sum of the counts; what is given stays as it is."""
    merged: dict[Key, VersionMetrics] = {}
    for each in many:
        for key, metrics in each.items():
            merged.setdefault(key, VersionMetrics()).add(metrics)
    return merged


class SharedMetrics:
    """Files `PID.json` in a folder; without one, a process counts alone."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._others: list[dict[Key, VersionMetrics]] = []

    def exchange(self, own: Mapping[Key, VersionMetrics]) -> None:
        """Write what this process has counted and read what the others have; called at every poll."""
        if self._folder is not None:
            mine = f"{os.getpid()}.json"
            _write(self._folder / mine, own)
            found = (path for path in self._folder.glob("*.json") if path.name != mine)
            self._others = [_read(path) for path in found]

    def total(self, own: Mapping[Key, VersionMetrics]) -> dict[Key, VersionMetrics]:
        """What this process has counted by now, and the others by their last poll."""
        # Copied first: requests count on the event loop while another thread asks.
        copied = {key: MetricsRecord.of(key, each).counted() for key, each in list(own.items())}
        return merge([copied, *self._others])

    def retire(self, pid: int) -> None:
        """Add the counts of a process that has ended to those of its predecessors; the supervisor's."""
        if self._folder is not None and (path := self._folder / f"{pid}.json").is_file():
            _write(self._folder / ENDED, merge([_read(self._folder / ENDED), _read(path)]))
            path.unlink()


def _write(path: Path, counts: Mapping[Key, VersionMetrics]) -> None:
    scratch = path.with_suffix(".part")
    scratch.write_bytes(msgspec.json.encode([MetricsRecord.of(*each) for each in list(counts.items())]))
    os.replace(scratch, path)


def _read(path: Path) -> dict[Key, VersionMetrics]:
    try:
        return {(each.name, each.number): each.counted() for each in _DECODER.decode(path.read_bytes())}
    # None has ended yet, or its process ended after the folder was listed: then its counts are among the ended.
    except FileNotFoundError:
        return {}
