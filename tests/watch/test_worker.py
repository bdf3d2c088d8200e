"""One worker in figures, and how it ended."""

import os
import platform
from pathlib import Path

import pytest
from fake_runs import NO_PID, ended, make_run, reported, started, step

from shoal.core.events import TrafficCounted, WarningRaised
from shoal.watch.summary import summarise, write_summary
from shoal.watch.worker import read_worker, read_workers, tally

HERE = platform.node()


def test_steps_are_added_up() -> None:
    worker = tally(3, [started(3), step(1, seconds=1.0), step(2, seconds=3.0, samples=30, wait=0.75)])
    assert (worker.rank, worker.steps, worker.samples, worker.seconds) == (3, 2, 40, 4.0)
    assert worker.samples_per_second == 10.0
    assert (worker.bytes_raw, worker.bytes_sent, worker.bytes_wire) == (800, 200, 240)
    assert worker.phases.exchange_wait == 0.5
    assert worker.phases.forward_backward == 1.5


def test_the_last_report_and_traffic_count() -> None:
    peers = {"1": (5, 6)}
    events = [reported(1, accuracy=0.1), reported(2, accuracy=0.9), WarningRaised(at=1.0, text="slow")]
    traffic = [TrafficCounted(at=1.0, step=1, peers={"1": (1, 1)}), TrafficCounted(at=2.0, step=2, peers=peers)]
    worker = tally(0, [*events, *traffic])
    assert (worker.metrics, worker.peers, worker.warnings) == ({"accuracy": 0.9}, peers, ["slow"])


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([], "silent"),
        ([started(host=HERE, pid=os.getpid())], "running"),
        ([started(host=HERE, pid=NO_PID)], "killed"),
        ([started(host="elsewhere")], "unknown"),
        ([started(), ended()], "done"),
        ([started(), ended("failed", "ValueError: no")], "failed"),
    ],
)
def test_how_it_ended(tmp_path: Path, events: list, state: str) -> None:
    worker = read_worker(make_run(tmp_path, events), 0)
    assert worker.state == state
    assert worker.error == ("ValueError: no" if state == "failed" else "")


def test_nobody_is_running_once_the_summary_is_written(tmp_path: Path) -> None:
    record = make_run(tmp_path, [started(host=HERE, pid=os.getpid())], [started(1)], [])
    write_summary(record.dir, summarise(record, exit=1))
    assert [worker.state for worker in read_workers(record)] == ["killed", "killed", "silent"]
