"""Who takes part in recovery.py: started, looked at, ended. Each trains recovery_model.py in processes of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

import recovery_log
from recovery_model import BATCH

from shoal.core.process import HostProcess

HERE = Path(__file__).parent
PATIENCE = 120.0
RESTARTS = 10_000


class Ended(Exception):  # noqa: N818  (a result of the measurement, too)
    """The contestant did not survive; the message is what it said last."""


class Contestant(ABC):
    """`with` starts it, and ends it with everything that belongs to it."""

    name: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]
    """What can be done to it."""

    def __init__(self, workers: int, lab: str, folder: Path) -> None:
        self.workers, self.lab, self.folder = workers, lab, folder
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True)
        self.output = (folder / "output").open("w+")
        self.processes: list[subprocess.Popen[bytes]] = []

    @abstractmethod
    def start(self) -> None: ...

    def end(self) -> None:
        """Let it end as its own tool would."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            if process.returncode is None:  # not reaped here: its number must stay its own until its group is killed
                HostProcess.of(process.pid).ended(PATIENCE)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.output.close()

    def left(self) -> list[int]:
        """Processes that were given our folder of logs, which nobody else has."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if str(self.logs).encode() in path.read_bytes():
                    found.append(int(path.parent.name))
        return found

    def options(self) -> dict[str, Any]:
        """How all its processes are started."""
        return {"cwd": self.folder, "stdout": self.output, "stderr": self.output, "start_new_session": True}

    def spawn(self, words: list[str]) -> None:
        here = {"GLOO_SOCKET_IFNAME": "lo"}
        self.processes.append(subprocess.Popen(words, env=environment() | here, **self.options()))

    def check(self) -> None:
        """Several times a second; Ended if it is over."""
        if any(process.poll() is not None for process in self.processes):
            raise Ended(self.last_words())

    def last_words(self) -> str:
        self.output.flush()
        return " / ".join((self.folder / "output").read_text(errors="replace").strip().splitlines()[-2:])

    def wait(self, what: str, true: Callable[[], bool]) -> None:
        """Until a condition holds; Ended if the contestant ends before, or takes too long."""
        limit = time.monotonic() + PATIENCE
        while not true():
            self.check()
            if time.monotonic() > limit:
                raise Ended(f"{what}: not within {PATIENCE:.0f} s; {self.last_words()}")
            time.sleep(0.05)  # by the logs' own clocks it is known better when it was

    def whole(self, since: float, least: int = 10) -> None:
        """All workers train: since this moment each of the living has made so many steps, together."""

        def there() -> bool:
            alive = recovery_log.alive(self.logs)
            made = [s for s in recovery_log.steps(self.logs, 1 << 16) if s.at > since and s.size == self.workers]
            counts = {pid: sum(s.pid == pid for s in made) for pid in alive}
            return len(alive) == self.workers and all(count >= least for count in counts.values())

        self.wait("all workers train", there)

    def noticed(self) -> list[float]:
        """When it said that a worker is lost, by the wall clock; nothing if it does not say."""
        return []

    def coordinator(self) -> int:
        """The process that says who takes part."""
        raise Ended("there is no coordinator")

    def samples(self) -> dict[str, int]:
        """Lost and doubled, once it has ended."""
        lost, doubled = recovery_log.used(recovery_log.steps(self.logs), self.workers)
        return {"lost": lost * BATCH, "doubled": doubled * BATCH}


class Shoal(Contestant):
    """`shoal run`."""

    name = "Shoal"
    parts = ("kills", "freezes", "coordinator", "goodput")

    def start(self) -> None:
        where = ["--lab", self.lab] if self.lab else ["--workers", str(self.workers)]
        words = ["run", "--name", "one", "--quiet", "--restarts", str(RESTARTS), *where]
        self.spawn([sys.executable, "-m", "shoal", *words, str(HERE / "recovery_shoal.py"), str(self.logs)])

    def coordinator(self) -> int:
        words = [sys.executable, "-m", "shoal", "ps", "--json"]
        runs = json.loads(subprocess.run(words, capture_output=True, check=True, env=environment()).stdout)["runs"]
        found = next(run for run in runs if run["dir"] == str(self.folder / "runs" / "one"))["coordinator"]
        return int(found["pid"]) if isinstance(found, dict) else super().coordinator()

    def noticed(self) -> list[float]:
        """When the launcher wrote down that a worker is lost: of a frozen one, after the coordinator's word."""
        file = self.folder / "runs" / "one" / "launcher.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [event["at"] for event in map(json.loads, lines) if event["event"] == "lost"]

    def samples(self) -> dict[str, int]:
        """By the ledger, of the epochs that were finished."""
        words = [sys.executable, "-m", "shoal", "show", "one", "--ledger", "--json"]
        done = subprocess.run(words, cwd=self.folder, capture_output=True, check=True, env=environment())
        epochs = json.loads(done.stdout)["epochs"]
        finished = [epoch for epoch in epochs if epoch["finished"]]
        doubled = sum(epoch["duplicate"] for epoch in epochs)
        return {"lost": sum(epoch["missing"] for epoch in finished), "doubled": doubled, "epochs": len(finished)}


def environment() -> dict[str, str]:
    """One thread each."""
    path = os.pathsep.join(filter(None, (str(HERE.parent / "src"), os.environ.get("PYTHONPATH", ""))))
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
