"""Statistics of two versions that share the requests (A/B): errors, latency and reward, and whether they differ.

Rates are compared by the two-proportion z-test, means by Welch's test with the normal distribution, which holds for the
hundreds of requests that such a comparison needs. Looking again and again until a difference shows finds one that is
not there: decide beforehand after how many requests to look.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import erfc, sqrt
from typing import Any

from shoal.serve.metrics import VersionMetrics

LEVEL = 1.96
"""Standard deviations of a 95 % interval."""


@dataclass(frozen=True)
class SampleSums:
    """How many values there are, their sum, and the sum of their squares."""

    count: int
    total: float
    squares: float

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    @property
    def error(self) -> float:
        """The mean's standard error, squared."""
        if self.count < 2:
            return 0.0
        # Rounding may take the difference of two large sums below 0.
        spread = max(0.0, self.squares - self.count * self.mean**2) / (self.count - 1)
        return spread / self.count


def two_sided(z: float) -> float:
    return erfc(abs(z) / sqrt(2.0))


def compare_means(a: SampleSums, b: SampleSums) -> float:
    """The probability of a difference of means as large as this one, were there none."""
    spread = a.error + b.error
    if a.count < 2 or b.count < 2 or spread == 0.0:
        return 1.0 if a.mean == b.mean or min(a.count, b.count) < 2 else 0.0
    return two_sided((b.mean - a.mean) / sqrt(spread))


def compare_rates(failed_a: int, count_a: int, failed_b: int, count_b: int) -> float:
    """As `compare_means`, of two shares."""
    if not count_a or not count_b:
        return 1.0
    pooled = (failed_a + failed_b) / (count_a + count_b)
    spread = pooled * (1.0 - pooled) * (1 / count_a + 1 / count_b)
    return two_sided((failed_a / count_a - failed_b / count_b) / sqrt(spread)) if spread else 1.0


def wilson_interval(failed: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share; right for shares near 0, where errors are."""
    if not count:
        return 0.0, 1.0
    share, square = failed / count, LEVEL**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = LEVEL / (1 + square / count) * sqrt(share * (1 - share) / count + square / (4 * count**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def latencies(metrics: VersionMetrics) -> SampleSums:
    return SampleSums(metrics.latency.count, metrics.latency.total, metrics.traffic.latency_squares)


def rewards(metrics: VersionMetrics) -> SampleSums:
    counts = metrics.traffic
    return SampleSums(counts.rewards, counts.reward, counts.reward_squares)


def describe_version(metrics: VersionMetrics) -> dict[str, Any]:
    """What is known of one version."""
    requests, failed = sum(metrics.statuses.values()), metrics.failed
    low, high = wilson_interval(failed, requests)
    seconds, reward = latencies(metrics), rewards(metrics)
    return {
        "requests": requests,
        "failed": failed,
        "error_rate": failed / requests if requests else 0.0,
        "error_rate_interval": [low, high],
        "latency_mean": seconds.mean,
        "latency_interval": [seconds.mean - LEVEL * sqrt(seconds.error), seconds.mean + LEVEL * sqrt(seconds.error)],
        "latency_p99": min(metrics.latency.quantile(0.99), 1e9),
        "rewards": reward.count,
        "reward_mean": reward.mean,
        "compared": metrics.traffic.compared,
        "agreed": metrics.traffic.agreed,
    }


def compare_versions(found: Mapping[int, VersionMetrics]) -> dict[str, Any]:
    """Each version, and the probabilities that the newest differs from the one before by chance alone."""
    told: dict[str, Any] = {"versions": {str(number): describe_version(each) for number, each in found.items()}}
    if len(found) >= 2:
        # The two newest: the one that is tried and the one before it.
        (_, a), (_, b) = sorted(found.items())[-2:]
        requests = sum(a.statuses.values()), sum(b.statuses.values())
        told["p_values"] = {
            "error_rate": compare_rates(a.failed, requests[0], b.failed, requests[1]),
            "latency": compare_means(latencies(a), latencies(b)),
            "reward": compare_means(rewards(a), rewards(b)),
        }
    return told
