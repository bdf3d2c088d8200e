"""A run that nobody can go on with begins again at its last checkpoint, in the same command."""

import json
import os
import signal
from pathlib import Path

import forked
import pytest
from forked import TRAIN, Forked, soon

WAIT = 60.0
ONCE = """
import os, signal, pathlib
mark = pathlib.Path(f"died-{TIMES}")
if run.rank == 0 and run.step == 5 and not mark.exists():
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def dies(times: str = "1") -> str:
    """Worker 0 is killed in step 5, each time with another TIMES."""
    lines = ONCE.replace("{TIMES}", times).strip().splitlines()
    return TRAIN.replace(
        "        run.log(loss=loss)", "\n".join(f"        {line}" for line in ["run.log(loss=loss)", *lines])
    )


def ledger(folder: Path, run: str = "one") -> list[dict[str, int]]:
    return json.loads(forked.shoal(folder, "show", run, "--ledger", "--json").out)["epochs"]


def test_a_single_worker_that_is_killed_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    calm = forked.train(tmp_path, TRAIN, "--name", "calm")
    done = forked.train(tmp_path, dies(), "--name", "one", "--checkpoint", "2steps", "--json")
    assert done.code == 0, done.err
    assert (
        "shoal: worker 0 died of SIGKILL (signal 9); the run begins again at its last checkpoint (1 of 3)" in done.err
    )
    assert done.checksum == calm.checksum
    assert (done.json["losses"], done.json["exit"]) == (1, 0)
    assert all((each["samples"], each["missing"], each["duplicate"]) == (24, 0, 0) for each in ledger(tmp_path))
    assert "worker 0 died of SIGKILL" in " ".join(forked.shoal(tmp_path, "show", "one").out.split())


def test_all_workers_at_once(tmp_path: Path) -> None:
    """P12 without a command: the launcher lives, everybody who knows the state is dead."""
    (tmp_path / "script.py").write_text(slowly(TRAIN).replace("epochs(2)", "epochs(4)"))
    words = ("--workers", "3", "--name", "one", "--checkpoint", "2steps", "--json")
    running: Forked = forked.command(tmp_path, "run", *words, "script.py")
    assert soon(WAIT, lambda: len(list(tmp_path.glob("runs/one/checkpoints/step-*"))) > 0)
    started = [json.loads(path.read_text().splitlines()[0])["pid"] for path in tmp_path.glob("runs/one/worker-*.jsonl")]
    for signal_ in (signal.SIGSTOP, signal.SIGKILL):  # so that nobody outlives another
        for pid in started:
            os.kill(pid, signal_)
    done = running.wait(WAIT)
    assert done.code == 0, done.err
    assert len(started) == 3
    assert "the run begins again at its last checkpoint (1 of 3)" in done.err
    assert all((each["samples"], each["missing"], each["duplicate"]) == (24, 0, 0) for each in ledger(tmp_path))


def slowly(script: str) -> str:
    return script.replace("optimizer.zero_grad()", "optimizer.zero_grad(); import time; time.sleep(0.2)")


def test_not_for_ever(tmp_path: Path) -> None:
    done = forked.train(tmp_path, dies("{os.getpid()}"), "--name", "one", "--restarts", "2")
    assert done.code == 1
    assert "(2 of 2)" in done.err
    assert "(3 of" not in done.err
    assert done.err.splitlines()[-3:-1] == [
        "shoal: worker 0 died of SIGKILL (signal 9)",
        "shoal: the record is in runs/one",
    ]
    assert done.err.splitlines()[-1] == "shoal: 2 losses on the way"


@pytest.mark.parametrize("words", [("--restarts", "0"), ("--min-workers", "2", "--workers", "2")])
def test_not_where_the_user_does_not_want_it(tmp_path: Path, words: tuple[str, ...]) -> None:
    every = dies("{os.getpid()}").replace("run.rank == 0 and", "")
    done = forked.train(tmp_path, every, *words)
    assert done.code == 1
    assert "begins again" not in done.err


def test_not_after_an_error_of_the_script(tmp_path: Path) -> None:
    done = forked.train(tmp_path, TRAIN + "\n1 / 0")
    assert done.code == 1
    assert "begins again" not in done.err
    assert done.err.count("ZeroDivisionError") == 2  # in the traceback, and in the last line


def test_an_interrupt_ends_the_second_attempt_too(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(slowly(dies()).replace("epochs(2)", "epochs(200)"))
    running: Forked = forked.command(tmp_path, "run", "--name", "one", "script.py")
    assert soon(WAIT, lambda: "begins again" in running.err.read_text())
    assert soon(WAIT, lambda: (tmp_path / "runs/one/worker-0.jsonl").read_text().count('"started"') == 2)
    os.kill(running.pid, signal.SIGINT)
    assert running.wait(WAIT).code == 130
