"""`shoal run --on ray`: a cluster of three nodes, in a network namespace because Ray listens at all addresses."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import soon
from soaked import SoakedEnds

from shoal.core.errors import UsageError
from shoal.launch.engines.ray import NodeWatcher
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
        self.process.stdout.close()


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[RayProcess]:
    found = RayProcess()
    yield found
    found.close()


needs_ray = pytest.mark.skipif(lacks, reason="needs root, unshare and shoal[ray]")
AWAY = {"SHOAL_ADDRESS": "127.0.0.1"}


@needs_ray
class TestRay(SoakedEnds):
    cluster: RayProcess
    nodes = ("--nodes", "3")

    @pytest.fixture(autouse=True)
    def _use(self, ray_cluster: RayProcess, request: pytest.FixtureRequest) -> None:
        request.instance.cluster = ray_cluster

    def command(self, folder: Path) -> tuple[list[str], dict[str, str]]:
        shoal = [sys.executable, "-m", "shoal", "run", "--on", f"ray:{self.cluster.address}", *self.nodes]
        return self.cluster.inside(*shoal), AWAY

    def lose_node(self, run: EngineRun) -> object:
        before, losses = run.training(self.size), run.said.count("was lost")
        self.cluster.tell("remove")
        run.wait_for(lambda: run.said.count("was lost") > losses, "the loss of the node is told")

        def back() -> None:
            self.cluster.tell("add")
            run.wait_for(lambda: self.replaced(run, before), "a new node takes part")

        return back

    @pytest.mark.soak("engines")
    def test_a_machine_is_added_and_removed(self, tmp_path: Path) -> None:
        """Without --nodes every node of the cluster is a machine."""
        self.nodes = ()
        super().test_a_machine_is_added_and_removed(tmp_path)

    def add_machine(self, run: EngineRun) -> None:
        self.cluster.tell("add")

    def remove_machine(self, run: EngineRun) -> None:
        self.cluster.tell("remove")


@needs_ray
@pytest.mark.soak("engines")
def test_a_cluster_is_used_from_outside_by_its_address(ray_cluster: RayProcess, tmp_path: Path) -> None:
    """ray://: this machine is no node of the cluster, and its two nodes with room are the others."""
    pytest.importorskip("grpc")
    words = [sys.executable, "-m", "shoal", "run", "--on", "ray://127.0.0.1:10001"]
    run = EngineRun(tmp_path, ray_cluster.inside(*words), AWAY)
    run.wait_training(3)
    assert run.end() == 0, run.said
    run.check_tidy()


FUNCTION = """
import torch, shoal, shoal.ray

def loop(config):
    run = shoal.start()
    model = torch.nn.Linear(4, 2)
    model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=config["lr"]))
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    print("trains in", __name__, "among", run.size, flush=True)

if __name__ == "__main__":
    import sys
    summary = shoal.ray.train(loop, config={"lr": 0.1}, nodes=3, address=sys.argv[1])
    print("summary of", summary["workers"], "workers,", summary["steps"], "steps")
"""


@needs_ray
@pytest.mark.soak("engines")
def test_a_function_trains_on_the_cluster(ray_cluster: RayProcess, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION)
    words = ray_cluster.inside(sys.executable, "mine.py", ray_cluster.address)
    done = subprocess.run(
        words, cwd=tmp_path, env={**os.environ, **AWAY}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trains in shoal_train among 3") == 3
    assert "summary of" in done.stdout


@needs_ray
@pytest.mark.soak("engines")
def test_nodes_of_a_cluster_are_kept_warm(ray_cluster: RayProcess, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION.partition("if __name__")[0] + 'loop({"lr": 0.1})')
    (tmp_path / "private").mkdir(mode=0o700)
    env = {**os.environ, **AWAY, "XDG_RUNTIME_DIR": str(tmp_path / "private"), "SHOAL_REGISTER": "0"}
    shoal = [sys.executable, "-m", "shoal"]
    start = ray_cluster.inside(*shoal, "pool", "start", "--on", f"ray:{ray_cluster.address}", "--nodes", "3")
    said = tmp_path / "said"
    with said.open("wb") as file:
        pool = subprocess.Popen(start, cwd=tmp_path, env=env, stderr=file)
    try:
        assert soon(120.0, lambda: "2 of 2 machines are warm" in said.read_text()), said.read_text()
        for _ in range(2):
            run = ray_cluster.inside(*shoal, "run", "--on", "pool", "mine.py")
            done = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False)
            assert done.returncode == 0, done.stderr
            assert done.stdout.count("among 3") == 3
    finally:
        pool.terminate()
        assert pool.wait(60.0) == 130


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs shoal[ray]")
def test_a_cluster_that_is_not_there_is_named() -> None:
    watcher = NodeWatcher("127.0.0.1:1", 1)
    watcher._words = [sys.executable, "-c", "import sys; sys.exit('ConnectionError: nobody listens')"]
    with pytest.raises(UsageError, match=r"no cluster at 127\.0\.0\.1:1: ConnectionError: nobody listens"):
        watcher.read()


def test_the_list_of_nodes_holds_while_nobody_answers() -> None:
    watcher = NodeWatcher("somewhere", 1)
    watcher._words = [sys.executable, "-c", "print('nodes aa bb', flush=True)"]
    assert watcher.read() == ["aa", "bb"]
    assert soon(10.0, lambda: watcher.read() and watcher._output is None), "its process has ended"
    assert watcher.read() == ["aa", "bb"]
    watcher.close()


@needs_ray
@pytest.mark.soak("engines")
def test_replicas_of_a_server_run_on_the_cluster(ray_cluster: RayProcess, tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text('{"a": [1.0, 2.0]}')
    words = ["serve", "table.json", "--on", f"ray:{ray_cluster.address}", "--replicas", "2", "--port", "8099"]
    shoal = ray_cluster.inside(sys.executable, "-m", "shoal", *words)
    with (tmp_path / "said").open("w") as said:
        server = subprocess.Popen(shoal, stderr=said, cwd=tmp_path, env={**os.environ, **AWAY})
    ask = ray_cluster.inside("curl", "-s", "127.0.0.1:8099/predict", "-d", '["a"]')

    def answers() -> bool:
        found = subprocess.run(ask, capture_output=True, text=True, timeout=60, check=False).stdout
        return '"outputs":[[1.0,2.0]]' in found

    def lines(text: str) -> int:
        return (tmp_path / "said").read_text().count(text)

    try:
        assert soon(120.0, lambda: lines("ray1 is there") == lines("ray2 is there") == 1), (
            tmp_path / "said"
        ).read_text()
        assert answers()
        ray_cluster.tell("remove")
        assert soon(120.0, lambda: lines("is lost") == 1)
        assert answers()
        ray_cluster.tell("add")
        assert soon(120.0, lambda: lines("is there") == 3)
    finally:
        server.terminate()
        assert server.wait(60) == 0
