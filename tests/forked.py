"""`shoal …` and `python …` in processes forked from the test: torch is imported already, which saves seconds each."""

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import io
import json
import logging
import math
import multiprocessing.util
import os
import signal
import sys
import time
import traceback
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.cli.main import main
from shoal.cli.warm import warm
from shoal.launch.worker import run_script
from shoal.watch import live

LATE = """
numba pydantic pydantic.plugin._loader rich.live rich.progress shoal.cli.again shoal.cli.opening shoal.cli.prepare
shoal.cli.relay shoal.cli.resume shoal.cli.run shoal.cli.run_checks shoal.cli.run_job shoal.cli.show shoal.lab.lab
shoal.lab.load shoal.launch.lab_placement shoal.launch.listen shoal.launch.local shoal.launch.supervisor
shoal.membership.handle shoal.membership.server shoal.train.compiling shoal.watch.live shoal.watch.summary
shoal.watch.worker tensorboard.summary torch._dynamo typer._adapters typer._click.decorators
"""
"""What a command imports only when it needs it: imported once here instead of once in every process."""


def warm_up() -> None:
    warm()
    for name in LATE.split():
        importlib.import_module(name)


warm_up()
TRAIN = """
import torch, shoal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = shoal.start()
torch.manual_seed(7)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(24, 4), torch.randn(24, 2)), batch_size=4, shuffle=True)
model, optimizer, loader = run.join(model, optimizer, loader)
for epoch in run.epochs(2):
    for x, y in loader:
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
run.report(quality=0.5)
if run.is_main:
    print("checksum", " ".join(f"{p.sum().item():.6f}" for p in model.parameters()))
"""


@dataclass(frozen=True)
class Outcome:
    """How a process ended."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def json(self) -> dict[str, Any]:
        """The last line of standard output."""
        return json.loads(self.out.splitlines()[-1])

    @property
    def checksum(self) -> str:
        return next(line[line.index("checksum") :] for line in self.out.splitlines() if "checksum" in line)


class Forked:
    """Runs `body` in a child whose output goes to files in `folder`."""

    def __init__(self, folder: Path, body: Callable[[], object], env: dict[str, str] | None = None) -> None:
        self.folder, self.began = folder, time.monotonic()
        self.out, self.err = (folder / f"{stream}-{time.monotonic_ns()}" for stream in ("out", "err"))
        for path in (self.out, self.err):
            path.touch()  # to be read before the child has come as far
        self.pid = os.fork()
        if self.pid == 0:
            _redirect(self.out, self.err)
            be_fresh(folder, body, env or {})

    def wait(self, seconds: float = 60.0) -> Outcome:
        return Outcome(
            reap(self.pid, seconds), self.out.read_text(), self.err.read_text(), time.monotonic() - self.began
        )


def command(folder: Path, *words: str, **env: str) -> Forked:
    """`shoal WORDS` in `folder`."""
    return Forked(folder, lambda: _command(list(words)), env)


def shoal(folder: Path, *words: str, **env: str) -> Outcome:
    return command(folder, *words, **env).wait()


def train(folder: Path, script: str, *words: str, **env: str) -> Outcome:
    """`shoal run WORDS script.py`, with the text of the script."""
    (folder / "script.py").write_text(script)
    return shoal(folder, "run", *words, "script.py", **env)


def refused(folder: Path, *words: str, **env: str) -> Outcome:
    """`shoal WORDS` in this process: for commands that are refused before they start anything."""
    out, err, began, before = io.StringIO(), io.StringIO(), time.monotonic(), (sys.argv, dict(os.environ))
    code: object = 0
    os.environ.update(env)
    try:
        with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            _command(list(words))
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.argv = before[0]
        os.environ.clear()
        os.environ.update(before[1])
    assert isinstance(code, int), code
    return Outcome(code, out.getvalue(), err.getvalue(), time.monotonic() - began)


def python(folder: Path, script: str = "", **env: str) -> Forked:
    """`python script.py`, with the text of the script, or with the one that is there."""
    if script:
        (folder / "script.py").write_text(script)
    return Forked(folder, lambda: run_script(Path("script.py"), []), env)


def _command(words: list[str]) -> None:
    sys.argv = ["shoal", *words]
    main(words)


def be_fresh(folder: Path, body: Callable[[], object], env: dict[str, str]) -> None:
    """In the child: like an interpreter that has just started, then `body`, then the end."""
    code = 1
    try:
        faulthandler.disable()
        gc.freeze()
        warnings.simplefilter("ignore")
        live.LINE_SECONDS = math.inf  # how often it tells of its progress depends on how busy the machine is
        atexit._clear()
        weakref.finalize._registry.clear()  # numba's 600 take 35 ms; those of the test's own folders would remove them
        for function in (logging.shutdown, multiprocessing.util._exit_function, weakref.finalize._exitfunc):
            atexit.register(function)
        sys.stdin = open(os.devnull)  # noqa: SIM115
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
        os.chdir(folder)
        os.environ.update(env)
        body()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException as error:  # noqa: BLE001
        sys.last_value = error
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)


def _redirect(out: Path, err: Path) -> None:
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)


def reap(pid: int, seconds: float) -> int:
    """The exit code of a child; a child that does not end fails the test."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError(f"process {pid} did not end within {seconds} s")


def soon(seconds: float, what: Callable[[], object]) -> bool:
    """Whether `what` becomes true within `seconds`; asked ever less often: who works on it needs the core."""
    limit, pause = time.monotonic() + seconds, 0.01
    while not what():
        if time.monotonic() > limit:
            return False
        time.sleep(pause)
        pause = min(0.1, 1.2 * pause)
    return True


def adopt_orphans() -> None:
    """Let processes whose parent dies become children of the test, so that none can hide."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def children() -> set[int]:
    """Living children of this process; the dead ones are reaped on the way."""
    words = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {int(word) for word in words if not _dead(int(word))}


def _dead(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def abandoned_memory(before: set[str]) -> set[str]:
    """Files in shared memory that are not among those `before`, and that no living process holds or has mapped: other
    tests, and other programs of the machine, have theirs in the same folder."""
    folder = Path("/dev/shm")
    found = {name for name in os.listdir(folder) if name not in before and not (folder / name).is_dir()}
    for process in Path("/proc").glob("[0-9]*") if found else ():
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            held = (process / "maps").read_text() + "".join(map(_target, (process / "fd").iterdir()))
            found = {name for name in found if f"{folder}/{name}" not in held}
    return found


def _target(descriptor: Path) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(descriptor) + " "
    return ""
