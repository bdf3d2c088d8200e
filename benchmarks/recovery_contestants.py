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
from typing import Self

import recovery_log
from recovery_model import BATCH

from shoal.cluster.lab.lab import Lab
from shoal.cluster.lab.load import load

HERE = Path(__file__).parent
PATIENCE = 120.0
RESTARTS = 10_000
CHECKPOINT = 5.0
"""Seconds between checkpoints of those that need them to go on after a loss."""


class Ended(Exception):  # noqa: N818  (a result of the measurement, too)
    """The contestant did not survive; the message is what it said last."""


class Contestant(ABC):
    """`with` starts it, and ends it with everything that belongs to it."""

    name: str

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
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
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

    def spawn(self, words: list[str]) -> None:
        self.processes.append(
            subprocess.Popen(
                words,
                cwd=self.folder,
                env=environment(),
                stdout=self.output,
                stderr=self.output,
                start_new_session=True,
            )
        )

    def check(self) -> None:
        if any(process.poll() is not None for process in self.processes):
            self.output.flush()
            raise Ended(" / ".join((self.folder / "output").read_text().strip().splitlines()[-2:]))

    def wait(self, what: str, true: Callable[[], bool]) -> None:
        """Until a condition holds; Ended if the contestant ends before, or takes too long."""
        limit = time.monotonic() + PATIENCE
        while not true():
            self.check()
            if time.monotonic() > limit:
                raise Ended(f"{what}: not within {PATIENCE:.0f} s")
            time.sleep(0.05)  # by the logs' own clocks it is known better when it was

    def whole(self, since: float, least: int = 10) -> None:
        """All workers train: since this moment each of the living has made so many steps, together."""

        def there() -> bool:
            alive = recovery_log.alive(self.logs)
            made = [s for s in recovery_log.steps(self.logs, 1 << 16) if s.at > since and s.size == self.workers]
            counts = {pid: sum(s.pid == pid for s in made) for pid in alive}
            return len(alive) == self.workers and all(count >= least for count in counts.values())

        self.wait("all workers train", there)


class Shoal(Contestant):
    """`shoal run`."""

    name = "Shoal"

    def start(self) -> None:
        where = ["--lab", self.lab] if self.lab else ["--workers", str(self.workers)]
        words = ["run", "--name", "one", "--quiet", "--restarts", str(RESTARTS), *where]
        self.spawn([sys.executable, "-m", "shoal", *words, str(HERE / "recovery_shoal.py"), str(self.logs)])

    def look(self) -> dict[str, object]:
        """Our own run, as `shoal ps` sees it."""
        done = subprocess.run(
            [sys.executable, "-m", "shoal", "ps", "--json"], capture_output=True, check=True, env=environment()
        )
        return next(run for run in json.loads(done.stdout)["runs"] if run["dir"] == str(self.folder / "runs" / "one"))

    def coordinator(self) -> int:
        found = self.look()["coordinator"]
        if not isinstance(found, dict):
            raise Ended("there is no coordinator")
        return int(found["pid"])

    def noticed(self) -> list[tuple[float, int]]:
        """When the launcher saw workers end, by the wall clock, and which."""
        file = self.folder / "runs" / "one" / "launcher.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        events = [event for event in map(json.loads, lines) if event["event"] == "lost"]
        return [(event["at"], event["worker"]) for event in events]

    def ledger(self) -> tuple[int, int, int]:
        """Epochs that were finished, and positions of them that are missing or came twice."""
        words = ["show", "one", "--ledger", "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "shoal", *words], cwd=self.folder, capture_output=True, check=True, env=environment()
        )
        epochs = json.loads(done.stdout)["epochs"]
        finished = [epoch for epoch in epochs if epoch["finished"]]
        doubled = sum(epoch["duplicate"] for epoch in epochs)
        return len(finished), sum(epoch["missing"] for epoch in finished), doubled


class Torchrun(Contestant):
    """`torchrun --max-restarts`: one agent here, or one on every host of a lab."""

    name = "torchrun"
    _lab: Lab | None = None

    def start(self) -> None:
        script = [str(HERE / "recovery_torchrun.py"), str(self.logs), str(CHECKPOINT)]
        words = [sys.executable, "-m", "torch.distributed.run", "--max-restarts", str(RESTARTS)]
        if not self.lab:
            self.spawn([*words, "--standalone", "--nproc-per-node", str(self.workers), *script])
            return
        self._lab = Lab(load(self.lab)).__enter__()
        meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{self._lab.hosts[0].address}:29400"]
        words += ["--nnodes", str(self.workers), "--nproc-per-node", "1", "--rdzv-id", "recovery", *meet]
        for host in range(self.workers):
            options = {"cwd": self.folder, "stdout": self.output, "stderr": self.output, "start_new_session": True}
            self.processes.append(self._lab.popen(host, [*words, *script], environment(), **options))

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self._lab is not None:
            self._lab.close()


def environment() -> dict[str, str]:
    """One thread each; on one host, gloo by loopback."""
    path = os.pathsep.join(filter(None, (str(HERE.parent / "src"), os.environ.get("PYTHONPATH", ""))))
    return os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": path}


def samples_of(redone: int, workers: int) -> int:
    """That were used twice, when steps are made again."""
    return redone * workers * BATCH
