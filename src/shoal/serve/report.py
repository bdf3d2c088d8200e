"""The state of a core as Prometheus text (exposition format 0.0.4)."""

from collections.abc import Callable

from shoal.serve.core import ServingCore
from shoal.serve.metrics import VersionMetrics, buckets, family
from shoal.serve.version import ServableVersion

STATES = ("new", "loading", "available", "draining", "ended", "failed")


def metrics_text(core: ServingCore) -> str:
    """Everything that is counted, one family after the other."""
    found = [(_labels(*key), metrics) for key, metrics in sorted(core.total_metrics().items())]

    def total(name: str, words: str, read: Callable[[VersionMetrics], float]) -> str:
        return family(f"shoal_serve_{name}_total", "counter", words, [("", each, read(m)) for each, m in found])

    statuses = [("", {**each, "status": str(s)}, n) for each, m in found for s, n in sorted(m.statuses.items())]
    latencies = [sample for each, m in found for sample in buckets(m.latency, each)]
    limits = core.batch_limits().items()
    versions = core.manager.versions()
    return "".join(
        [
            family("shoal_serve_requests_total", "counter", "Requests by HTTP status.", statuses),
            family("shoal_serve_latency_seconds", "histogram", "From request to answer.", latencies),
            total("samples", "Samples computed.", lambda m: m.rows),
            total("batches", "Batches computed.", lambda m: m.batches),
            total("failed_batches", "Batches in which the model raised an error.", lambda m: m.failed_batches),
            total("queue_seconds", "Seconds that requests waited.", lambda m: m.waited),
            total("cache_hits", "Requests answered from the cache.", lambda m: m.traffic.cache_hits),
            total("copies_compared", "Samples also asked of a version that is tried.", lambda m: m.traffic.compared),
            total("copies_agreed", "Of these, with the same answer.", lambda m: m.traffic.agreed),
            total("rewards", "Answers with feedback.", lambda m: m.traffic.rewards),
            total("reward", "Sum of the feedback.", lambda m: m.traffic.reward),
            total("compute_seconds", "Seconds that models computed.", lambda m: m.computed),
            family(
                "shoal_serve_batch_limit",
                "gauge",
                "Samples a batch may have now.",
                [("", _labels(*k), v[0]) for k, v in limits],
            ),
            family(
                "shoal_serve_queued", "gauge", "Samples that wait now.", [("", _labels(*k), v[1]) for k, v in limits]
            ),
            family("shoal_serve_version_state", "gauge", "1 for the state a version is in.", _states(versions)),
            family(
                "shoal_serve_memory_bytes",
                "gauge",
                "Estimated memory of loaded versions.",
                [("", {}, core.manager.memory())],
            ),
        ]
    )


def _labels(name: str, number: int) -> dict[str, str]:
    return {"model": name, "version": str(number)}


def _states(versions: list[ServableVersion]) -> list[tuple[str, dict[str, str], float]]:
    return [
        ("", {**_labels(each.name, each.number), "state": state}, float(each.state == state))
        for each in versions
        for state in STATES
    ]
