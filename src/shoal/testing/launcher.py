"""The conformance case of engines: one run over several machines starts, loses and regains workers, and ends.

Subclass, say how to start and what to kill; the machines may all be this one:

    class TestMine(LauncherCase):
        def command(self, folder):
            return ["--on", "mine:a,b"], {}
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

WAIT = 100.0
SCRIPT = """
import os, sys, time, torch, shoal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = shoal.start()
torch.manual_seed(7)
model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
loader = DataLoader(TensorDataset(torch.randn(160, 4), torch.randn(160, 2)), batch_size=2, shuffle=True)
model, optimizer, loader = run.join(model, optimizer, loader)
said = 0
for epoch in run.epochs(1000):
    for x, y in loader:
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
        if run.size != said:
            said = run.size
            print(f"trains pid={os.getpid()} size={run.size}", flush=True)
    if os.path.exists(sys.argv[1] + ".fail") and run.rank == run.size - 1:
        raise ValueError("the data of this machine are bad")
    run.report(over=float(os.path.exists(sys.argv[1])))
print("checksum", *(f"{p.double().sum().item():.17g}" for p in model.parameters()), flush=True)
"""
"""Trains until a file is there; every worker says when the number of workers has changed."""


NOTED_KEYS = """
import os, sys

if {"shoal", "run"} <= set(sys.orig_argv):
    import zmq

    make = zmq.curve_keypair

    def make_and_note():
        pair = make()
        with open(os.environ["NOTED_KEYS"], "ab") as file:
            file.write(pair[1] + b"\\n")
        return pair

    zmq.curve_keypair = make_and_note
"""
"""As sitecustomize.py: every secret key that `shoal run` makes is noted, so that a test can look for it."""


class EngineRun:
    """A run under test, its output so far, and what it may not leave behind."""

    def __init__(self, folder: Path, words: list[str], environment: dict[str, str]) -> None:
        self.folder, self.name = folder, f"case-{os.getpid()}-{time.monotonic_ns() % 10**9}"
        self.over = folder / "over"
        (folder / "script.py").write_text(SCRIPT)
        self._noted = folder / ".noted"
        self._noted.mkdir(mode=0o700, exist_ok=True)
        (self._noted / "sitecustomize.py").write_text(NOTED_KEYS)
        self._out, self._err = folder / "out.txt", folder / "err.txt"
        # A case may give a whole command, such as one that an engine's own tool starts.
        shoal = [sys.executable, "-m", "shoal"] if not words or words[0].startswith("-") else []
        before = words if not shoal else [*shoal, "run", *words]
        command = [*before, "--name", self.name, "script.py", str(self.over)]
        # A run under test leaves no version in the user's registry.
        known = {**os.environ, "SHOAL_UNTIL": "over>=1", "SHOAL_REGISTER": "0", **environment}
        known["PYTHONPATH"] = os.pathsep.join(filter(None, (str(self._noted), known.get("PYTHONPATH"))))
        known["NOTED_KEYS"] = str(self._noted / "keys")
        # A session of its own, so that `started` can end all of it and Ctrl-C here does not reach it.
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command, cwd=folder, env=known, stdout=out, stderr=err, start_new_session=True
            )

    @property
    def said(self) -> str:
        """Everything that has come to the terminal where the command was given."""
        return self._out.read_text(errors="replace") + self._err.read_text(errors="replace")

    def wait_for(self, what: Callable[[], object], text: str) -> None:
        limit = time.monotonic() + WAIT
        while not what():
            ended = self.process.poll()
            assert ended is None, f"it ended with {ended} before {text}:\n{self.said}"
            assert time.monotonic() < limit, f"not within {WAIT:.0f} s: {text}:\n{self.said}"
            time.sleep(0.05)

    def training(self, size: int) -> dict[int, int]:
        """Worker -> pid of those that have said that they train among `size` workers."""
        found = re.findall(rf"^\[(\d+)\] trains pid=(\d+) size={size}$", self.said, re.MULTILINE)
        return {int(worker): int(pid) for worker, pid in found}

    def count_reports(self, size: int) -> int:
        """How often a worker has said that it trains among `size` workers."""
        return len(re.findall(rf"^\[\d+\] trains pid=\d+ size={size}$", self.said, re.MULTILINE))

    def wait_training(self, size: int) -> dict[int, int]:
        """Wait until all of them live and have said so."""

        def all_live() -> bool:
            pids = self.training(size)
            # The newest of each, because a worker that was replaced has said so too.
            return len(pids) >= size and all(Path(f"/proc/{pid}").exists() for pid in list(pids.values())[-size:])

        self.wait_for(all_live, f"{size} workers train")
        return self.training(size)

    def end(self) -> int:
        """It is enough: returns the exit code."""
        self.over.touch()
        return self.process.wait(WAIT)

    def processes(self) -> list[int]:
        """Processes that have this run's name in their command line."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and self.name.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return found

    @property
    def secrets(self) -> list[bytes]:
        """The secret keys that the run has made so far."""
        noted = self._noted / "keys"
        return noted.read_bytes().split() if noted.exists() else []

    def check_secrets(self) -> None:
        """No key is in an argument, a variable, the terminal, or a file of the run that others may read."""
        secrets = self.secrets
        assert secrets, "the run has made no keys: none can be looked for"
        places = {path: _read(path) for name in ("cmdline", "environ") for path in Path("/proc").glob(f"[0-9]*/{name}")}
        # Files that only this user may read are where keys belong while a run goes on.
        places |= {path: _read(path) for path in self._files() if path.stat().st_mode & 0o077}
        found = [str(path) for path, text in places.items() if any(secret in text for secret in secrets)]
        assert not found, f"a secret key is in {found}"

    def _files(self) -> list[Path]:
        """All that the run has written, but for the keys that were noted."""
        return [path for path in self.folder.rglob("*") if path.is_file() and self._noted not in path.parents]

    def check_tidy(self) -> None:
        # Engines end their remote processes a moment after the command.
        limit = time.monotonic() + 30.0
        while self.processes() and time.monotonic() < limit:
            time.sleep(0.1)
        left = [(pid, Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")) for pid in self.processes()]
        assert not left, f"processes are left: {left}"
        self.check_secrets()
        secrets = self.secrets
        kept = [str(path) for path in self._files() if any(secret in _read(path) for secret in secrets)]
        assert not kept, f"a secret key is left in {kept}"


def _read(path: Path) -> bytes:
    """Empty where the process, or the file, is gone."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.timeout(300)
class LauncherCase(ABC):
    """All methods but `command` have a meaning by default. Each test takes one start of the engine."""

    size = 3
    """Workers in all that `command` starts."""
    replaces_workers = True
    """Whether a worker that is killed is started again; MPI ends everything instead."""
    remote = 1
    """A worker that is not on the first machine."""

    @abstractmethod
    def command(self, folder: Path) -> tuple[list[str], dict[str, str]]:
        """Return the words after `shoal run` (or a whole command, up to the options of a run), and the environment."""

    def lose_node(self, run: EngineRun) -> Callable[[], object] | None:
        """Take a node from the engine; returns what brings it back. None: the engine has no such thing."""
        return None

    fixed_machines = ""
    """Why machines can neither be added nor removed while a run trains; empty: they can."""

    def add_machine(self, run: EngineRun) -> None:
        """Give the engine one more machine of one worker, while `run` trains."""
        raise NotImplementedError

    def remove_machine(self, run: EngineRun) -> None:
        """Take the machine away that was added."""
        raise NotImplementedError

    def check_nothing_left(self) -> None:  # noqa: B027  (most engines leave nothing but processes)
        """Check that no job, pod or actor of the engine is left."""

    @contextmanager
    def started(self, folder: Path) -> Iterator[EngineRun]:
        run = EngineRun(folder, *self.command(folder))
        try:
            yield run
        finally:
            if run.process.poll() is None:
                os.killpg(run.process.pid, signal.SIGKILL)
                run.process.wait()
            for pid in run.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def test_starts_survives_and_ends(self, tmp_path: Path) -> None:
        """Output of all in one terminal, no key where others could read it, a killed worker, a lost node, the exit
        code, and nothing left behind."""
        with self.started(tmp_path) as run:
            pids = run.wait_training(self.size)
            run.check_secrets()
            if self.replaces_workers:
                os.kill(pids[self.remote], signal.SIGKILL)
                run.wait_for(lambda: self.replaced(run, pids), "the killed worker is replaced")
            if (bring_back := self.lose_node(run)) is not None:
                bring_back()
            self.check_end(run)
        self.check_nothing_left()

    def test_a_machine_is_added_and_removed(self, tmp_path: Path) -> None:
        """While the run trains: the newcomer takes part, and when it is gone the others go on, with equal replicas."""
        if self.fixed_machines:
            pytest.skip(self.fixed_machines)
        with self.started(tmp_path) as run:
            run.wait_training(self.size)
            self.add_machine(run)
            run.wait_training(self.size + 1)
            before = run.count_reports(self.size)
            self.remove_machine(run)
            run.wait_for(lambda: run.count_reports(self.size) >= before + self.size, "the others train on")
            self.after_removal(run)
        self.check_nothing_left()

    def after_removal(self, run: EngineRun) -> None:
        """End the run whose machine was removed; a case may check more in the same run."""
        self.check_end(run)

    def check_end(self, run: EngineRun) -> None:
        """End the run, and check that replicas are equal and no process is left."""
        assert run.end() == 0, run.said
        sums = {line.partition("checksum")[2] for line in run.said.splitlines() if "checksum" in line}
        assert len(sums) == 1, f"replicas differ, or nobody has come to the end: {run.said}"
        run.check_tidy()

    def replaced(self, run: EngineRun, before: dict[int, int]) -> bool:
        """Return whether as many workers as before train, at least one of them new."""
        now = run.training(self.size)
        new = [pid for pid in now.values() if pid not in before.values()]
        return bool(new) and all(Path(f"/proc/{pid}").exists() for pid in new)

    def test_an_error_of_the_script_is_told(self, tmp_path: Path) -> None:
        """The traceback reaches the terminal once; the others go on, and the machine is not tried again."""
        with self.started(tmp_path) as run:
            run.wait_training(self.size)
            (tmp_path / "over.fail").touch()
            run.wait_for(lambda: "ValueError: the data of this machine are bad" in run.said, "the error is told")
            self.after_error(run)
            run.check_tidy()
        self.check_nothing_left()

    def after_error(self, run: EngineRun) -> None:
        """The remaining workers train on to the end."""
        (run.folder / "over.fail").unlink()
        run.wait_for(lambda: "its script failed" in run.said, "the machine is given up")
        assert run.end() == 0, run.said

    exit_interrupted = (130,)
    """Exit codes after Ctrl-C; an engine that starts this command itself has its own."""

    def test_ctrl_c_ends_all_machines(self, tmp_path: Path) -> None:
        with self.started(tmp_path) as run:
            run.wait_training(self.size)
            run.process.send_signal(signal.SIGINT)
            assert run.process.wait(WAIT) in self.exit_interrupted, run.said
            run.check_tidy()
        self.check_nothing_left()
