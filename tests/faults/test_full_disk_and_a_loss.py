"""S2: nothing at all can be written to the run's folder any more, while a worker is lost."""

import errno
import os
import re
from pathlib import Path

import pytest
from forked import Forked, soon
from forked import _command as call
from scripts import assert_exactly_once, script

from shoal.core.disk import FileOperations

FULL_AT, LOST_AT = 6, 10
EACH = f"""
        if run.step == {FULL_AT} and run.rank == 0: open("full", "a").close()
        if run.step == {LOST_AT} and run.rank == 1 and not os.path.exists("lost"):
            open("lost", "w").close(); os.kill(os.getpid(), 9)
"""


def fill_disk(folder: Path, kept: str) -> None:
    """From now on, in this process and those it forks: while the file `full` is there, so is the disk.

    Files whose name matches `kept` have the room that was set aside for them.
    """
    real, runs = os.write, str(folder / "runs")

    def is_full(file: int) -> bool:
        path = os.readlink(f"/proc/self/fd/{file}")
        return (folder / "full").exists() and path.startswith(runs) and not re.search(kept, path)

    def write(file: int, data: bytes) -> int:
        if file > 2 and is_full(file):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(file, data)

    os.write = write  # type: ignore[assignment]
    FileOperations.reserve = lambda self, file, begin, size: not is_full(file)  # type: ignore[method-assign]


def run_on_full_disk(folder: Path, kept: str) -> Forked:
    script(folder, samples=192, each=EACH.strip())

    def body() -> None:
        fill_disk(folder, kept)
        call(["run", "--name", "one", "--workers", "2", "--checkpoint", "8steps", "--json", "script.py"])

    return Forked(folder, body)


def test_s2_a_worker_is_replaced_on_a_full_disk(tmp_path: Path) -> None:
    """The room that log and ledger have is enough for that; the record is merged, and the training complete."""
    outcome = run_on_full_disk(tmp_path, r"members\.log|ledger\.log").wait(90)
    assert outcome.code == 0, outcome.err
    assert "Traceback" not in outcome.err
    for line in (
        r"\[0\] shoal: the record .*worker-0.jsonl cannot grow: No space left on device; training goes on",
        r"shoal: worker 1 was lost \(SIGKILL\) in step \d+; the others go on, and it is started again",
        r"\[0\] shoal: the checkpoint of step \d+ failed: No space left on device; training goes on",
        r"shoal: cannot write .*summary.json: No space left on device; shoal show one computes it",
    ):
        assert len(re.findall(f"^{line}", outcome.err, re.M)) == 1, (line, outcome.err)
    assert_exactly_once(tmp_path, "one", 192, 2)


def test_s2_a_coordinator_that_cannot_write_waits_for_room(tmp_path: Path) -> None:
    """It is told once; nobody is replaced meanwhile, and the run goes on when there is room."""
    running = run_on_full_disk(tmp_path, r"ledger\.log")
    line = r"^shoal: the coordinator cannot write .*members.log: .*No space left on device; it tries again"
    assert soon(60, lambda: re.search(line, running.err.read_text(), re.M)), running.err.read_text()
    (tmp_path / "full").unlink()
    outcome = running.wait(90)
    assert outcome.code == 0, outcome.err
    assert "Traceback" not in outcome.err
    assert len(re.findall(line, outcome.err, re.M)) == 1, outcome.err
    assert_exactly_once(tmp_path, "one", 192, 2)


@pytest.fixture(autouse=True)
def no_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard's files have their own test."""
    monkeypatch.setattr("shoal.cli.relay.available", lambda: False)
