"""P8 a worker runs out of memory again and again: it is quarantined. P9 a worker is starved of processor: it is not."""

from pathlib import Path

import pytest
from forked import Forked, soon
from groups import little_memory, little_time
from scripts import assert_exactly_once, assert_no_step_lost, given_up, shoal
from test_killed_or_frozen_worker import EPOCHS, SLOW, WAIT, disturbed, doing, pid, start, write

from shoal.core.process import HostProcess

pytestmark = pytest.mark.timeout(300)
SAMPLES = 1200
HOG = """
if run.worker_id == 1:
    open("GROUP/cgroup.procs", "w").write(str(os.getpid()))
mine = 0
"""
EACH = f"""{SLOW}
        mine += 1
        if run.worker_id == 1 and mine == 7: hog = bytearray(1 << 29)"""


@pytest.mark.soak
def test_p8_a_worker_that_runs_out_of_memory_again_and_again_is_quarantined(tmp_path: Path) -> None:
    with little_memory(64 << 20) as group:
        write(tmp_path, samples=SAMPLES)
        text = (tmp_path / "script.py").read_text().replace(SLOW, EACH)
        hog = HOG.replace("GROUP", str(group))
        (tmp_path / "script.py").write_text(text.replace("scheduler =", f"{hog}scheduler =", 1))
        running = start(tmp_path, "--restarts", "2", "--json")
        assert soon(WAIT, lambda: [worker.state for worker in doing()][1:2] == ["quarantined"]), (
            "it is started again for ever"
        )
        worker = doing()[1]
        assert (worker.reason, worker.starts, worker.rank) == ("oom", 3, None)
        assert "quarantined (oom)" in shoal(tmp_path, "ps").out
        (tmp_path / "go").touch()
        outcome = running.wait(WAIT)
    assert outcome.code == 0, outcome.err
    assert outcome.err.count("worker 1 was lost (oom)") == 3
    assert "the others go on, and it is quarantined: oom 3 times" in outcome.err
    assert "shoal: 3 losses on the way; worker 1 is quarantined (oom 3 times)" in outcome.err
    assert (outcome.json["losses"], outcome.json["quarantined"]) == (3, {"1": "oom 3 times"})
    assert "it is quarantined: oom 3 times" in " ".join(shoal(tmp_path, "show", "one").out.split())
    assert_exactly_once(tmp_path, "one", SAMPLES, EPOCHS)
    assert_no_step_lost(tmp_path, 3)


def test_p8_a_run_that_ends_for_want_of_memory_says_so(tmp_path: Path) -> None:
    with little_memory(64 << 20) as group:
        write(tmp_path, samples=SAMPLES)
        text = (tmp_path / "script.py").read_text().replace(SLOW, EACH)
        hog = HOG.replace("GROUP", str(group))
        (tmp_path / "script.py").write_text(text.replace("scheduler =", f"{hog}scheduler =", 1))
        outcome = start(tmp_path, "--restarts", "0", "--min-workers", "3").wait(WAIT)
    assert outcome.code == 1
    assert "worker 1 died of SIGKILL (signal 9): the kernel killed it for want of memory" in outcome.err


def test_p9_a_starved_worker_is_waited_for(tmp_path: Path) -> None:
    with little_time(0.1) as quota:

        def starve(_running: Forked) -> None:
            process = HostProcess.of(pid(tmp_path, 1))
            quota.take(process.pid)
            there = doing()[1].step
            assert soon(WAIT, lambda: doing()[1].step >= there + 10), "it does not get on"
            assert process.state == "running"

        err = disturbed(tmp_path, starve)
    assert "was lost" not in err
    assert given_up(tmp_path) == []
