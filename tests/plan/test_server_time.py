"""The forecast of a step through parameter servers: which link is the busiest, and what a batch computes."""

import pytest

from shoal.core.errors import UsageError
from shoal.groups.cluster_file import ClusterMeasurement, LinkMeasurement, SpeedMeasurement
from shoal.plan.explain import explain
from shoal.plan.plan import Plan
from shoal.plan.server_time import MeasuredComputing, busiest_link, computing_seconds


@pytest.mark.parametrize(
    ("workers", "shards", "hosts", "bytes_"),
    [
        pytest.param(4, 1, 8, 400, id="one server gets everything"),
        pytest.param(4, 2, 8, 200, id="two halve it"),
        pytest.param(4, 4, 8, 100, id="as many as workers: both links carry a whole gradient"),
        pytest.param(4, 8, 12, 100, id="more do not help: a worker's own link is full"),
        pytest.param(4, 1, 4, 300, id="a server beside a worker: that gradient stays on the host"),
        pytest.param(2, 2, 2, 50, id="a server beside each worker"),
    ],
)
def test_the_busiest_link_is_that_of_a_server_or_of_a_worker(
    workers: int, shards: int, hosts: int, bytes_: float
) -> None:
    assert busiest_link(100, workers, shards, hosts) == bytes_


def test_a_batch_lies_on_the_line_through_what_was_measured() -> None:
    measured = [MeasuredComputing(8, 0.06), MeasuredComputing(32, 0.18)]
    assert computing_seconds(measured, 64) == pytest.approx(0.34)
    assert computing_seconds(measured[:1], None) == computing_seconds(measured[:1], 8) == 0.06
    with pytest.raises(UsageError, match="--batch 64: the run computed 8 a step; give a second run"):
        computing_seconds(measured[:1], 64)
    with pytest.raises(UsageError, match="computed 8, 32 samples a step: which is meant"):
        computing_seconds(measured, None)


def cluster(hosts: int) -> ClusterMeasurement:
    workers = [SpeedMeasurement(rank, "h", "10.0.0.1", 50.0, 1) for rank in range(hosts)]
    links = [LinkMeasurement(a, b, 20.0, 8.0) for a in range(hosts) for b in range(hosts) if a != b]
    return ClusterMeasurement(workers, links)


def test_a_step_is_computing_and_twice_the_busiest_link() -> None:
    found = explain(Plan.parse("server(shards=2)"), 4, 50_000, cluster(8), computing=0.1).traffic
    assert found is not None
    assert found.seconds == pytest.approx(2 * 400_000 / 1e6 + 2 * 0.02)
    assert found.step_seconds == pytest.approx(0.1 + 0.84)
    assert "a step about 940.0 ms, 100.0 of them computing" in str(found)


def test_workers_without_a_lock_step_have_no_such_time() -> None:
    found = explain(Plan.parse("server, async"), 4, 50_000, cluster(8), computing=0.1).traffic
    assert found is not None
    assert found.step_seconds is None


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="--workers 9: the cluster has 8"):
        explain(Plan.parse("server"), 9, cluster=cluster(8))
    with pytest.raises(UsageError, match="--computing: how long a step takes depends on the network too"):
        explain(Plan.parse("server"), 4, computing=0.1)
