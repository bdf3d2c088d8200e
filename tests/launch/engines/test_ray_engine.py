"""`shoal run --on ray`: a cluster of three nodes, in a network namespace because Ray listens at all addresses."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from soaked import SoakedEnds

from shoal.testing import EngineRun

lacks = importlib.util.find_spec("ray") is None or os.getuid() != 0 or shutil.which("unshare") is None


class RayProcess:
    """The cluster, and commands in its namespace."""

    def __init__(self) -> None:
        words = ["unshare", "-n", sys.executable, str(Path(__file__).with_name("ray_cluster.py"))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(words, **pipes, text=True)  # type: ignore[call-overload]
        self.address = self._read("address")

    def _read(self, word: str) -> str:
        for line in self.process.stdout:
            if line.startswith(word):
                return str(line.split()[1])
        raise AssertionError("the cluster did not start")

    def tell(self, word: str) -> None:
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        self._read(word)

    def inside(self, *words: str) -> list[str]:
        return ["nsenter", "-t", str(self.process.pid), "-n", *words]

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(60.0)


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[RayProcess]:
    found = RayProcess()
    yield found
    found.close()


@pytest.mark.skipif(lacks, reason="needs root, unshare and shoal[ray]")
class TestRay(SoakedEnds):
    cluster: RayProcess

    @pytest.fixture(autouse=True)
    def _use(self, ray_cluster: RayProcess, request: pytest.FixtureRequest) -> None:
        request.instance.cluster = ray_cluster

    def command(self, folder: Path) -> tuple[list[str], dict[str, str]]:
        shoal = [sys.executable, "-m", "shoal", "run", "--on", f"ray:{self.cluster.address}", "--nodes", "3"]
        return self.cluster.inside(*shoal), {"SHOAL_ADDRESS": "127.0.0.1"}

    def lose_node(self, run: EngineRun) -> object:
        before, losses = run.training(self.size), run.said.count("was lost")
        self.cluster.tell("remove")
        run.wait_for(lambda: run.said.count("was lost") > losses, "the loss of the node is told")

        def back() -> None:
            self.cluster.tell("add")
            run.wait_for(lambda: self.replaced(run, before), "a new node takes part")

        return back
