"""The others of recovery.py: torchrun with checkpoints, and torchft, whose workers are started again by this file.

Both have one process on every host of the lab. torchft's lighthouse sits where Shoal's coordinator does: on a host
after the others, with a link without limits.
"""

import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

from recovery_contestants import HERE, RESTARTS, Contestant, Ended, environment

from shoal.lab.lab import NetworkLab
from shoal.lab.load import load

CHECKPOINT = 5.0
"""Seconds between checkpoints of those that need them to go on after a loss."""
MEET, LIGHTHOUSE = 29400, 29510
JOIN_MS = 10_000
"""torchft's lighthouse waits so long for those that are late, as its README has it. A replica that was left out of a
step is waiting from its beginning: were the step (1.4 s when one is given the state) longer than this, the lighthouse
would go on with the first three that are there, without whoever is the last, step after step."""
STILLBORN = 5
"""Workers in a row that end without having begun."""


class InLab(Contestant):
    """Its processes are on the hosts of a lab that this process holds."""

    lighthouse: ClassVar[bool] = False
    settings: ClassVar[dict[str, str]] = {}
    """What the environment of its processes says besides."""
    _lab: NetworkLab | None = None

    def enter(self) -> NetworkLab:
        if not self.lab:
            raise Ended(f"{self.name} is measured in a lab only; say --lab")
        self._lab = NetworkLab(load(self.lab), coordinator=self.lighthouse).__enter__()
        return self._lab

    def popen(self, host: int, words: list[str]) -> "subprocess.Popen[bytes]":
        assert self._lab is not None
        return self._lab.popen(host, words, environment() | self.settings, **self.options())

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        if self._lab is not None:
            self._lab.close()


class Torchrun(InLab):
    """`torchrun --max-restarts`, one agent on every host. It does not notice a frozen worker: gloo waits 30 minutes."""

    name = "torchrun"
    parts = ("kills", "goodput")
    # without it, workers did not meet again within 120 s after a loss
    settings: ClassVar[dict[str, str]] = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def start(self) -> None:
        lab = self.enter()
        meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{lab.hosts[0].address}:{MEET}", "--rdzv-id", "recovery"]
        for host in range(self.workers):
            words = [sys.executable, "-m", "torch.distributed.run", "--max-restarts", str(RESTARTS), *meet]
            # hosts of a lab have no names, by which an agent would find out where it is
            words += ["--rdzv-conf", f"is_host={int(host == 0)}", "--local-addr", lab.hosts[host].address]
            words += ["--nnodes", str(self.workers), "--nproc-per-node", "1"]
            words += [str(HERE / "recovery_torchrun.py"), str(self.logs), str(CHECKPOINT)]
            self.processes.append(self.popen(host, words))


class Torchft(InLab):
    """A lighthouse, and one replica group of one process on every host."""

    name = "torchft"
    parts = ("kills", "freezes", "coordinator", "goodput")
    lighthouse = True
    python: ClassVar[str] = sys.executable
    """The interpreter that has it."""

    def __init__(self, workers: int, lab: str, folder: Path) -> None:
        super().__init__(workers, lab, folder)
        self._stillborn = 0

    @classmethod
    def version(cls) -> str:
        words = [cls.python, "-c", "import importlib.metadata as m; import torchft; print(m.version('torchft'))"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{cls.python} cannot import torchft; give an interpreter that can, or leave it out of --peers")
        return done.stdout.strip()

    def start(self) -> None:
        lab = self.enter()
        words = [self.python, str(HERE / "recovery_lighthouse.py"), "--bind", f"0.0.0.0:{LIGHTHOUSE}"]
        words += ["--min_replicas", "2", "--join_timeout_ms", str(JOIN_MS)]
        self.processes.append(self.popen(len(lab.hosts) - 1, words))
        time.sleep(1.0)
        self.processes += [self._replica(host) for host in range(self.workers)]

    def _replica(self, host: int) -> "subprocess.Popen[bytes]":
        assert self._lab is not None
        hosts = self._lab.hosts
        place = [str(host), str(self.workers), hosts[host].address, f"http://{hosts[-1].address}:{LIGHTHOUSE}"]
        return self.popen(host, [self.python, str(HERE / "recovery_torchft.py"), str(self.logs), *place])

    def check(self) -> None:
        """Start those again that have ended, as torchft leaves to others to do."""
        if self.processes[0].poll() is not None:
            raise Ended(self.last_words())
        for host, process in enumerate(self.processes[1:]):
            if process.poll() is None:
                continue
            self._stillborn = 0 if (self.logs / f"{process.pid}.log").exists() else self._stillborn + 1
            if self._stillborn >= STILLBORN:
                raise Ended(self.last_words())
            self.processes[1 + host] = self._replica(host)

    def coordinator(self) -> int:
        return self.processes[0].pid


PEERS: dict[str, type[Contestant]] = {each.name: each for each in (Torchrun, Torchft)}
