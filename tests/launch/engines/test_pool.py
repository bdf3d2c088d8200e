"""`shoal pool`: machines are leased, used again by the next run without starting anything, and given back."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import TRAIN, shoal, soon

SHORT = TRAIN + "\nimport os\nprint('machine', os.getpgid(os.getppid()), os.getppid(), run.size, flush=True)\n"


class Pool:
    """A pool of two further machines, which are this one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "pool.log"
        words = [sys.executable, "-m", "shoal", "pool", "start", "--on", "local", "--nodes", "3"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log, start_new_session=True)
        ready = "2 of 2 machines are warm"
        assert soon(90.0, lambda: ready in self.log.read_text() or self.process.poll() is not None)
        assert ready in self.log.read_text(), self.log.read_text()

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "shoal", "run", "--on", "pool", *words]
        env = {**os.environ, "SHOAL_REGISTER": "0"}
        return subprocess.run(
            command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=90, check=False
        )

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(60.0) == 130, self.log.read_text()


@pytest.fixture
def pool(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("private")))
    found = Pool(tmp_path)
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
    for name in ("one", "two"):
        done = pool.run("--name", name, "script.py")
        assert done.returncode == 0, done.stderr
        assert len(re.findall(r"^\[\d\] machine \d+ \d+ 3$", done.stdout, re.MULTILINE)) == 3, done.stdout
    shown = shoal(pool.folder, "pool", "show").out
    assert shown.splitlines() == [f"machine{n}: 1 workers, free, leased 2 times" for n in (1, 2)]
    (pool.folder / "bad.py").write_text("raise ValueError('no')")
    done = pool.run("bad.py")
    assert done.returncode == 1
    assert "ValueError: no" in done.stderr
    assert pool.run("missing.py").returncode == 2
    assert shoal(pool.folder, "run", "--on", "pool:other", "script.py").code == 2
    assert shoal(pool.folder, "pool", "stop").code == 0
    assert pool.process.wait(60.0) == 0, pool.log.read_text()


@pytest.mark.soak("engines")
def test_the_next_run_starts_five_times_faster_than_a_cold_one(pool: Pool) -> None:
    (pool.folder / "script.py").write_text(SHORT)

    def seconds(*words: str) -> float:
        began = time.monotonic()
        command = [sys.executable, "-m", "shoal", "run", "--quiet", *words, "script.py"]
        subprocess.run(command, cwd=pool.folder, env={**os.environ, "SHOAL_REGISTER": "0"}, check=True, timeout=90)
        return time.monotonic() - began

    seconds("--on", "pool")
    warm = sorted(seconds("--on", "pool") for _ in range(5))[2]
    cold = sorted(seconds("--on", "local", "--nodes", "3") for _ in range(3))[1]
    assert cold >= 5 * warm, f"cold {cold:.2f} s, warm {warm:.2f} s"
