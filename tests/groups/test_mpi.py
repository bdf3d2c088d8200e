"""MPI as transport: `mpirun python train.py`, with mpi4py and Open MPI from Debian."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from in_short import DEPENDS_ON_THE_ENGINE

from shoal.groups import mpi
from shoal.groups.mpi import MpiWork
from shoal.testing import ExchangeCase

needs_mpi = pytest.mark.skipif(
    shutil.which("mpirun") is None or importlib.util.find_spec("mpi4py") is None, reason="needs mpirun and shoal[mpi]"
)
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]


def run_ranks(count: int, folder: Path, *words: str, **env: str) -> "subprocess.CompletedProcess[str]":
    known = {**os.environ, "OMP_NUM_THREADS": "1", "SHOAL_RUNS": str(folder / "runs"), **env}
    command = [*MPIRUN, "-n", str(count), sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=known, capture_output=True, text=True, timeout=150, check=False)


LOST = "test_a_lost_worker_ends_the_wait"
WHOLE = {name for name in dir(ExchangeCase) if name.startswith("test_")} - {LOST}


@needs_mpi
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("ranks", "names"),
    [(2, DEPENDS_ON_THE_ENGINE - {LOST}), pytest.param(3, WHOLE, marks=pytest.mark.soak("engines"))],
    ids=["in short", "whole"],
)
def test_the_conformance_case_of_exchanges_passes_over_mpi(tmp_path: Path, ranks: int, names: set[str]) -> None:
    done = run_ranks(ranks, tmp_path, str(Path(__file__).with_name("mpi_cases.py")), *names)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.replace("passed ", "").split()) == names


LOSSES = """
import torch, shoal
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
run = shoal.start()
torch.manual_seed(3)
model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
x = torch.randn(96, 8)
loader = DataLoader(TensorDataset(x, x.sin().sum(1, keepdim=True)), batch_size=8, shuffle=True)
model, optimizer, loader = run.join(model, torch.optim.Adam(model.parameters(), lr=0.01), loader)
for epoch in run.epochs(3):
    for a, b in loader:
        loss = ((model(a) - b) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if run.is_main: print(loss.item().hex(), flush=True)
if run.is_main: print(type(run._group).__name__)
"""


@needs_mpi
@pytest.mark.soak("engines")
@pytest.mark.timeout(200)
def test_the_same_program_has_the_same_losses_to_the_bit_over_each_transport(tmp_path: Path) -> None:
    """Links of our own, gloo and MPI; of two workers, so that every sum has one order."""
    (tmp_path / "script.py").write_text(LOSSES)
    found = {
        "MpiGroup": run_ranks(2, tmp_path, "script.py").stdout,
        "LinkedGroup": run_by_hand(tmp_path),
        "TorchGroup": run_by_hand(tmp_path, SHOAL_TRUSTED="1", GLOO_SOCKET_IFNAME="lo"),
    }
    losses = {}
    for kind, text in found.items():
        *losses[kind], last = text.split()
        assert last == kind
    assert len(losses["MpiGroup"]) == 18
    assert losses["MpiGroup"] == losses["LinkedGroup"] == losses["TorchGroup"]


def run_by_hand(folder: Path, **env: str) -> str:
    """Two workers in torchrun's manner, as if on two hosts."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = str(trial.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    known = {**os.environ, **place, "OMP_NUM_THREADS": "1", "SHOAL_RUNS": str(folder / "runs"), **env}
    workers = [
        subprocess.Popen(
            [sys.executable, "script.py"], cwd=folder, env={**known, "RANK": rank}, stdout=subprocess.PIPE, text=True
        )
        for rank in ("0", "1")
    ]
    said = [worker.communicate(timeout=100)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    return said[0]


@needs_mpi
@pytest.mark.soak("engines")
def test_a_lost_rank_ends_all(tmp_path: Path) -> None:
    """By mpirun: what waits for it has no end of its own."""
    (tmp_path / "script.py").write_text(
        "import os, shoal\n"
        "run = shoal.start()\n"
        f"if run.rank == 1: os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
        "run._group.gather(b'')\n"
    )
    done = run_ranks(2, tmp_path, "script.py")
    assert done.returncode != 0
    assert "signal 9" in done.stderr


def test_ranks_without_mpi4py_are_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "mpi4py.py").write_text("raise ImportError('no library of MPI')")
    env = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, "-c", "import shoal; shoal.start()"],
        env={**os.environ, **env, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "mpirun has started 2 ranks" in done.stderr
    assert "pip install 'shoal[mpi]'" in done.stderr


class NeverDone:
    def Test(self) -> bool:  # noqa: N802  (as mpi4py has it)
        return False


def test_a_collective_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi, "PAUSE", 0.0)
    with pytest.raises(RuntimeError, match="was not done within 0 s"):
        MpiWork(NeverDone(), 0.01).wait()
