"""`shoal stop`: a run ends with a checkpoint, or at once; nothing of it stays behind."""

import json
import os
import signal
from pathlib import Path

import pytest
from forked import Forked, _command, command, reap, shoal, soon
from test_ps import FOREVER, WAIT, end, ps, train, trains

from shoal.cli import stop
from shoal.core.errors import UsageError
from shoal.core.process import HostProcess
from shoal.lab.needs import missing
from shoal.launch.live_runs import RunNotice
from shoal.train.checkpoint.manifest import listed

pytestmark = pytest.mark.usefixtures("tidy")

FEW = FOREVER.replace("10**9", "3").replace("time.sleep(0.02)", "pass")


def proof(folder: Path) -> list[dict[str, object]]:
    return json.loads(shoal(folder, "show", "one", "--ledger", "--json").out)["epochs"]


def goes_on(folder: Path, epoch: int) -> None:
    """The rest of the training, and a few epochs more; every sample of all of them exactly once."""
    (folder / "script.py").write_text(FEW.replace("run.epochs(3)", f"run.epochs({epoch + 2})"))
    again = shoal(folder, "run", "--runs", "elsewhere", "--resume", "runs/one/")  # a path needs no folder of runs
    assert again.code == 0, again.err
    assert not (folder / "elsewhere").exists()
    assert [row["epoch"] for row in proof(folder)] == list(range(epoch + 2))
    assert all((row["missing"], row["duplicate"]) == (0, 0) for row in proof(folder))


@pytest.mark.parametrize(
    "lose", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["undisturbed", "after a loss"]
)
def test_a_run_is_stopped_with_a_checkpoint(tmp_path: Path, lose: bool) -> None:
    running = train(tmp_path, "--workers", "2", "--checkpoint", "1h")
    if lose:
        first = ps()[0]["members"][0]["pid"]
        os.kill(first, signal.SIGKILL)
        assert soon(WAIT, lambda: ps()[0]["members"][0]["pid"] != first)
        trains()
    step = ps()[0]["step"]
    outcome = shoal(tmp_path, "stop", "one")
    assert (outcome.code, outcome.out) == (0, ""), outcome.err
    (kept,) = listed(tmp_path / "runs" / "one")
    saved = int(kept.name.rpartition("-")[2])
    assert saved >= step
    assert outcome.err == (
        f"shoal: one has ended; its checkpoint is of step {saved}: go on with shoal run --resume one\n"
    )
    ended = running.wait(WAIT)
    assert ended.code == 130
    assert "Traceback" not in ended.err
    assert ps() == []
    goes_on(tmp_path, max(int(row["epoch"]) for row in proof(tmp_path)))


def test_a_run_that_has_nothing_to_save_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import time\nopen('ready', 'w')\ntime.sleep(600)")
    running = command(tmp_path, "run", "--name", "one", "--workers", "2", "script.py")
    assert soon(WAIT, (tmp_path / "ready").exists)
    outcome = shoal(tmp_path, "stop", "./runs/one/")
    assert (outcome.code, outcome.err) == (0, "shoal: one has ended; it left no checkpoint\n")
    assert running.wait(WAIT).code == 130


STUBBORN = """
import signal, time
[signal.signal(n, signal.SIG_IGN) for n in (2, 15)]
open("ready", "w")
time.sleep(600)
"""


def test_now_asks_nobody(tmp_path: Path) -> None:
    """Workers that would not end by themselves, and a launcher that is asleep."""
    (tmp_path / "script.py").write_text(STUBBORN)
    running = command(tmp_path, "run", "--name", "one", "--workers", "2", "--json", "script.py")
    assert soon(WAIT, (tmp_path / "ready").exists)
    assert soon(WAIT, lambda: ps())
    os.kill(running.pid, signal.SIGSTOP)
    assert soon(WAIT, lambda: ps()[0]["state"] == "stopped")
    outcome = shoal(tmp_path, "stop", "--now", "one")
    assert outcome.code == 0, outcome.err
    ended = running.wait(WAIT)
    assert ended.code == ended.json["exit"] == 130
    assert listed(tmp_path / "runs" / "one") == []
    assert ps() == []


def test_now_also_ends_a_launcher_that_does_not_listen(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(STUBBORN)

    def deaf() -> None:
        for number in (signal.SIGQUIT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        _command(["run", "--name", "one", "--workers", "2", "script.py"])

    running = Forked(tmp_path, deaf)
    assert soon(WAIT, (tmp_path / "ready").exists)
    assert soon(WAIT, lambda: ps())
    members = [member["pid"] for member in ps()[0]["members"]]

    def well() -> None:
        stop.PATIENCE = stop.PATIENCE_NOW = 0.2
        _command(["stop", *words, "one"])

    words: list[str] = []
    outcome = Forked(tmp_path, well).wait(WAIT)
    assert (outcome.code, f"shoal stop --now one@{running.pid}" in outcome.err) == (1, True)
    words = ["--now"]
    outcome = Forked(tmp_path, well).wait(WAIT)
    assert outcome.code == 0, outcome.err
    assert reap(running.pid, WAIT) == -signal.SIGKILL
    assert soon(WAIT, lambda: not any(Path(f"/proc/{pid}").exists() for pid in members if not _zombie(pid)))
    assert ps() == []


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


def test_a_run_is_found_by_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a/one", "b/one", "b/two"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.json").touch()
    alive = [
        RunNotice(
            run="one", dir=str(tmp_path / name), plan="", since=0.0, board=0, launcher=HostProcess.of(os.getpid())
        )
        for name in ("a/one", "b/one")
    ]
    assert stop.find("b/one/", alive) is alive[1]
    with pytest.raises(UsageError, match="the run in 'b/two' is not live; live are: one@"):
        stop.find("b/two", alive)
    with pytest.raises(UsageError, match=r"'./b' is no run's folder"):
        stop.find("./b", alive)


def test_what_does_not_live_cannot_be_stopped(tmp_path: Path) -> None:
    outcome = shoal(tmp_path, "stop", "one")
    assert outcome.code == 2
    assert outcome.err == "shoal: no run 'one' is live, nor any other of yours; shoal show lists what they left\n"
    running = train(tmp_path)
    for name, told in (("on", "did you mean 'one'?"), ("zzz", f"live are: one@{running.pid}"), ("../one", "one")):
        outcome = shoal(tmp_path, "stop", name)
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
        assert told in outcome.err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "script.py").write_text(FOREVER)
    second = command(tmp_path / "other", "run", "--name", "one", "script.py")
    assert soon(WAIT, lambda: len(ps()) == 2)
    outcome = shoal(tmp_path, "stop", "one")
    assert outcome.code == 2
    assert f"2 live runs are called 'one'; say which: one@{running.pid} (in {tmp_path}/runs/one), one@" in outcome.err
    assert shoal(tmp_path, "stop", "--now", f"one@{second.pid}").code == 0
    assert second.wait(WAIT).code == 130
    assert [run["pid"] for run in ps()] == [running.pid]
    end(running)


@pytest.mark.skipif(bool(missing()), reason="; ".join(missing()))
def test_a_run_in_a_lab_is_stopped_with_a_checkpoint(tmp_path: Path) -> None:
    running = train(tmp_path, "--lab", "2 hosts, 100mbit", "--checkpoint", "1h")
    outcome = shoal(tmp_path, "stop", "one")
    assert outcome.code == 0, outcome.err
    assert "its checkpoint is of step" in outcome.err
    assert running.wait(WAIT).code == 130
