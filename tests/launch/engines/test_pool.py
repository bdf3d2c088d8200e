"""`shoal pool`: machines are leased, used again by the next run without starting anything, and given back."""

import contextlib
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import TRAIN, Outcome, command, shoal, soon

pytestmark = pytest.mark.timeout(300)  # agents import torch
SHORT = (
    TRAIN
    + """
import os
with open(f"/proc/{os.getppid()}/stat") as file:
    parent = file.read().rpartition(")")[2].split()[1]
print("size", run.size, "from", parent, flush=True)
"""
)
"""Every worker says from which process the one that started it was forked: an agent, or the pool itself."""
FIRST_STEP = """
import time, torch, shoal
run = shoal.start()
model = torch.nn.Linear(4, 2)
model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
model(torch.randn(2, 4)).sum().backward()
optimizer.step()
if run.is_main: print("first step", time.time(), flush=True)
"""


class Pool:
    """A pool of further machines, which are this one. Its agents note what they and their children import."""

    def __init__(self, folder: Path, machines: int) -> None:
        self.folder, self._imports = folder, folder / "imports"
        shutil.copy(Path(__file__).with_name("noted_imports.py"), folder / "sitecustomize.py")
        words = ("pool", "start", "--on", "local", "--nodes", str(machines + 1))
        self.server = command(folder, *words, IMPORTS=str(self._imports), PYTHONPATH=str(folder))
        ready = f"{machines} of {machines} machines are warm"
        assert soon(90.0, lambda: ready in self.said or "error" in self.said), self.said

    @property
    def said(self) -> str:
        return self.server.err.read_text()

    def run(self, *words: str) -> Outcome:
        return shoal(self.folder, "run", "--on", "pool", *words, SHOAL_REGISTER="0")

    def take_imports(self) -> list[str]:
        """Modules that agents, and what was forked from them, have imported since the last time."""
        names = self._imports.read_text().split()
        self._imports.write_text("")
        return names

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # unless a test has waited for it
            os.kill(self.server.pid, signal.SIGTERM)
            assert self.server.wait().code == 130, self.said


@pytest.fixture
def pool(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Pool]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("private")))
    found = Pool(tmp_path, machines=1 if request.node.get_closest_marker("soak") is None else 2)
    yield found
    found.close()
    marks = [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"pool\0serve" in _read(path)]
    ours = [path for path in marks if str(tmp_path) in os.readlink(path.with_name("cwd"))]
    assert not ours, "agents are left"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_machines_are_leased_used_again_and_given_back(pool: Pool) -> None:
    (pool.folder / "script.py").write_text(SHORT)
    assert "torch" in pool.take_imports(), "before any run"
    found = []
    for name in ("one", "two"):
        done = pool.run("--name", name, "script.py")
        assert done.code == 0, done.err
        found.append(sorted(re.findall(r"^\[(\d)\] size 2 from (\d+)$", done.out, re.MULTILINE)))
        assert [worker for worker, _ in found[-1]] == ["0", "1"], done.out
    assert found[0] == found[1], "each worker's process was forked from the same one in both runs"
    assert found[0][0] == ("0", str(pool.server.pid)), "the head is forked from the pool itself"
    again = [word for word in pool.take_imports() if word.partition(".")[0] in ("torch", "shoal", "numpy", "rich")]
    assert not again, "a run imports nothing that the pool could have imported"
    shown = shoal(pool.folder, "pool", "show").out
    assert shown.splitlines() == ["machine1: 1 workers, free, leased 2 times"]
    assert pool.run("missing.py").code == 2
    assert shoal(pool.folder, "run", "--on", "pool:other", "script.py").code == 2
    assert shoal(pool.folder, "pool", "stop").code == 0
    assert pool.server.wait().code == 0, pool.said


def test_the_command_that_uses_a_pool_imports_no_torch(tmp_path: Path) -> None:
    text = "import sys, shoal.cli.main\ntry: shoal.cli.main.main()\nfinally: print('torch' in sys.modules)"
    typed = [sys.executable, "-c", text, "run", "--on", "pool:nowhere", "script.py"]
    done = subprocess.run(typed, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "False\n"), done.stderr
    assert "no pool 'nowhere' is there; start it with shoal pool start" in done.stderr


@pytest.mark.soak("engines")
def test_the_next_run_starts_five_times_faster_than_a_cold_one(pool: Pool) -> None:
    """To the end of the first step, cold and warm in turns, so that what else the machine does hits both alike."""
    (pool.folder / "script.py").write_text(FIRST_STEP)

    def seconds(*words: str) -> float:
        began = time.time()
        typed = [sys.executable, "-m", "shoal", "run", *words, "script.py"]
        env = {**os.environ, "SHOAL_REGISTER": "0"}
        done = subprocess.run(typed, cwd=pool.folder, env=env, check=True, timeout=180, capture_output=True, text=True)
        return float(re.findall(r"first step (\S+)", done.stdout)[0]) - began

    seconds("--on", "pool")
    turns = [(seconds("--on", "local", "--nodes", "3"), seconds("--on", "pool")) for _ in range(3)]
    assert statistics.median(cold / warm for cold, warm in turns) >= 5.0, turns
