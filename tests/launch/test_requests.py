"""Signals to workers: to a worker and its children while it is ours, and to nobody once its number is free."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forked import TRAIN, Forked, soon
from forked import _command as call

from shoal.core.process import HostProcess
from shoal.launch.failures import WorkerProcess
from shoal.launch.stop_requests import reap, signal_group


def worker_with_child() -> tuple[WorkerProcess, HostProcess]:
    """A worker that has ended, not reaped yet, whose own child still sleeps in its process group."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        os.write(write, str(child).encode())
        os._exit(3)
    os.close(write)
    child = HostProcess.of(int(os.read(read, 32)))
    os.close(read)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return WorkerProcess(0, pid), child


def test_the_children_of_a_worker_end_when_it_is_reaped() -> None:
    worker, child = worker_with_child()
    assert reap(worker)
    assert worker.status == 3
    assert child.ended(30)


def test_a_worker_that_lives_is_not_reaped_unless_waited_for() -> None:
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        time.sleep(60)
        os._exit(0)
    worker = WorkerProcess(0, pid)
    assert not reap(worker)
    assert worker.status is None
    assert soon(30, lambda: os.getpgid(pid) == pid)
    signal_group(worker, signal.SIGKILL)
    assert reap(worker, wait=True)
    assert worker.status == -signal.SIGKILL


def test_a_reaped_worker_is_never_signalled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may belong to a stranger by then."""
    worker, _ = worker_with_child()
    assert reap(worker)
    sent: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda pid, number: sent.append(pid))
    for number in (signal.SIGINT, signal.SIGKILL):
        signal_group(worker, number)
    assert not reap(worker)
    assert sent == []


@pytest.mark.parametrize("lost", [False, True])
def test_a_whole_run_signals_only_processes_that_are_its_own(tmp_path: Path, lost: bool) -> None:
    """Whatever the launcher kills is a child that was not waited for: no other process can have its number."""
    dies = "\n        if run.rank and run.step == 3: os.kill(os.getpid(), 9)"
    text = TRAIN.replace("run.log(loss=loss)", f"run.log(loss=loss){dies * lost}")
    (tmp_path / "script.py").write_text(f"import os\n{text}")
    strangers = tmp_path / "strangers"
    real = os.killpg

    def killpg(pid: int, number: int) -> None:
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            strangers.touch()
        real(pid, number)

    def body() -> None:
        os.killpg = killpg
        call(["run", "--workers", "2", "--restarts", "0", "script.py"])

    outcome = Forked(tmp_path, body, {"XDG_RUNTIME_DIR": str(tmp_path)}).wait()
    assert outcome.code == 0, outcome.err
    assert not strangers.exists()


REUSED = """
import os, pathlib, signal, time, types
from shoal.launch.failures import WorkerProcess
from shoal.launch.local import LocalLauncher
from shoal.launch.stop_requests import StopRequests, reap

pid = os.fork()
if pid == 0:
    os.setpgid(0, 0)
    os._exit(3)
worker = WorkerProcess(0, pid)
assert reap(worker, wait=True)
for _ in range(10):  # a thread may take the number before us
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(worker.pid - 1))
    stranger = os.fork()
    if stranger == 0:
        os.setpgid(0, 0)
        signal.pause()
    if stranger == worker.pid:
        break
    os.kill(stranger, signal.SIGKILL)
    os.waitpid(stranger, 0)
assert stranger == worker.pid, "the number was not given again"
while os.getpgid(stranger) != stranger:
    time.sleep(0.01)


class Sweeping:
    workers = [worker]
    _sweep, _end_all = LocalLauncher._sweep, LocalLauncher._end_all

    def __getattr__(self, name):
        return Anything()


class Anything:
    def __getattr__(self, name):
        return lambda *_, **__: ()

    def __call__(self, *_, **__):
        return None

    def __bool__(self):
        return False


Sweeping.supervisor, Sweeping.job = None, types.SimpleNamespace(dir=pathlib.Path("/nowhere"))
Sweeping()._end_all(at_once=True)
Sweeping()._sweep()
requests = StopRequests()
requests.begin(-10.0)
requests.press([worker])
assert os.waitpid(stranger, os.WNOHANG) == (0, 0), "a stranger was killed"
os.kill(stranger, signal.SIGKILL)
print("alive")
"""


def own_numbers() -> list[str]:
    """The command that runs another in a PID namespace of its own; empty where that is not allowed."""
    tool = ["unshare", "--pid", "--fork", "--mount-proc"]
    try:
        allowed = subprocess.run([*tool, "true"], capture_output=True, timeout=30, check=False).returncode == 0
    except FileNotFoundError:
        return []
    return tool if allowed else []


@pytest.mark.skipif(not own_numbers(), reason="PID namespaces are not allowed here")
def test_a_stranger_with_the_number_of_a_worker_that_ended_outlives_the_final_sweep() -> None:
    line = [*own_numbers(), sys.executable, "-c", REUSED]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "alive\n", done.stderr
