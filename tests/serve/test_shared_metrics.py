"""Counts of several processes add up, and never fall."""

import os
from pathlib import Path

from shoal.serve.metrics import VersionMetrics
from shoal.serve.shared_metrics import MetricsRecord, SharedMetrics, merge

KEY = ("m", 1)


def counted(requests: int) -> dict[tuple[str, int], VersionMetrics]:
    metrics = VersionMetrics()
    for _ in range(requests):
        metrics.request_done(200, 0.02)
    metrics.request_done(500, 0.02)
    metrics.batch_done(requests, requests, 0.5, 0.25, True)
    return {KEY: metrics}


def test_a_record_holds_everything() -> None:
    (metrics,) = counted(3).values()
    assert MetricsRecord.of(KEY, metrics).counted() == metrics


def test_the_sum_leaves_its_parts_as_they_are() -> None:
    first, second = counted(2), counted(5)
    total = merge([first, second])[KEY]
    assert (total.statuses, total.rows, total.batches, total.latency.count) == ({200: 7, 500: 2}, 7, 2, 7)
    assert (first, second) == (counted(2), counted(5))


def test_a_process_sees_the_others_and_those_that_have_ended(tmp_path: Path) -> None:
    shared, pid = SharedMetrics(tmp_path), os.getpid()
    for requests in (2, 4):  # one process after the other, with the same id here
        shared.exchange(counted(requests))
        shared.retire(pid)
    shared.retire(pid)  # it left nothing
    shared.exchange(counted(1))
    assert shared.total(counted(1))[KEY].statuses[200] == 7
