"""What the server counts: requests, samples, batches and seconds of every version, as JSON and as Prometheus text."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

EDGES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper ends of the histogram's buckets, in seconds."""
Labels = Mapping[str, str]


@dataclass
class LatencyHistogram:
    """Counts by bucket; the last one has no upper end."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(EDGES) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(EDGES, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """The upper end of the bucket that holds this share of the values; 0 if there are none."""
        left = share * self.count
        for edge, count in zip((*EDGES, float("inf")), self.counts, strict=True):
            left -= count
            if left <= 0 and self.count:
                return edge
        return 0.0


@dataclass
class TrafficCounts:
    """What caches, comparisons and feedback count of one version; all of it adds up over processes."""

    latency_squares: float = 0.0
    cache_hits: int = 0
    cache_misses: int = 0
    compared: int = 0
    """Samples that were also asked of the version in service, and how many had the same answer."""
    agreed: int = 0
    rewards: int = 0
    reward: float = 0.0
    reward_squares: float = 0.0
    loss: float = 0.0
    """Sum of (1 - reward) ÷ the probability with which the version was chosen."""

    def add(self, other: "TrafficCounts") -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


@dataclass
class VersionMetrics:
    """Of one version; the batcher's observer."""

    statuses: Counter[int] = field(default_factory=Counter)
    """Requests by HTTP status."""
    latency: LatencyHistogram = field(default_factory=LatencyHistogram)
    """Of requests that were answered, from the last byte of the request."""
    rows: int = 0
    batches: int = 0
    failed_batches: int = 0
    waited: float = 0.0
    computed: float = 0.0
    sizes: Counter[int] = field(default_factory=Counter)
    """Batches by their number of samples."""
    traffic: TrafficCounts = field(default_factory=TrafficCounts)

    def batch_done(self, requests: int, rows: int, waited: float, seconds: float, failed: bool) -> None:
        self.batches += 1
        self.rows += rows
        self.failed_batches += failed
        self.waited += waited
        self.computed += seconds
        self.sizes[rows] += 1

    def request_done(self, status: int, seconds: float) -> None:
        self.statuses[status] += 1
        if status == 200:
            self.latency.add(seconds)
            self.traffic.latency_squares += seconds * seconds

    def rewarded(self, reward: float, loss: float) -> None:
        """Feedback about one answer: 0 is useless, 1 right."""
        self.traffic.rewards += 1
        self.traffic.reward += reward
        self.traffic.reward_squares += reward * reward
        self.traffic.loss += loss

    def add(self, other: "VersionMetrics") -> None:
        """Count what another process has counted."""
        self.statuses += other.statuses
        self.latency.counts = [a + b for a, b in zip(self.latency.counts, other.latency.counts, strict=True)]
        self.latency.total += other.latency.total
        self.rows += other.rows
        self.batches += other.batches
        self.failed_batches += other.failed_batches
        self.waited += other.waited
        self.computed += other.computed
        self.sizes += other.sizes
        self.traffic.add(other.traffic)

    @property
    def failed(self) -> int:
        """Requests that the server is to blame for."""
        return sum(count for status, count in self.statuses.items() if status >= 500)


def statistics(name: str, number: int, metrics: VersionMetrics) -> dict[str, object]:
    """Statistics of one version, in the words of the protocol's extension; times in nanoseconds."""

    def duration(count: int, seconds: float) -> dict[str, int]:
        return {"count": count, "ns": int(seconds * 1e9)}

    answered = metrics.statuses[200]
    refused = sum(metrics.statuses.values()) - answered
    return {
        "name": name,
        "version": str(number),
        "inference_count": metrics.rows,
        "execution_count": metrics.batches,
        "inference_stats": {
            "success": duration(answered, metrics.latency.total),
            "fail": duration(refused, 0.0),
            "queue": duration(answered, metrics.waited),
            "compute_infer": duration(answered, metrics.computed),
            "cache_hit": duration(metrics.traffic.cache_hits, 0.0),
            "cache_miss": duration(metrics.traffic.cache_misses, 0.0),
        },
        "batch_stats": [{"batch_size": size, "count": count} for size, count in sorted(metrics.sizes.items())],
    }


def family(name: str, kind: str, words: str, samples: Iterable[tuple[str, Labels, float]]) -> str:
    """One metric in Prometheus' exposition format 0.0.4; each sample with the ending of its name."""
    lines = [f"{name}{ending}{_braces(labels)} {value}" for ending, labels, value in samples]
    return "\n".join([f"# HELP {name} {words}", f"# TYPE {name} {kind}", *lines, ""]) if lines else ""


def buckets(histogram: LatencyHistogram, labels: Labels) -> Iterable[tuple[str, Labels, float]]:
    total = 0
    for edge, count in zip((*map(str, EDGES), "+Inf"), histogram.counts, strict=True):
        # Prometheus' buckets are cumulative: each counts all below it too.
        total += count
        yield "_bucket", {**labels, "le": edge}, total
    yield "_sum", labels, histogram.total
    yield "_count", labels, total


def _braces(labels: Labels) -> str:
    escaped = (f'{key}="{_escaped(value)}"' for key, value in labels.items())
    return "{" + ",".join(escaped) + "}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
