"""`mpirun … shoal run --on mpi`: Open MPI from Debian."""

import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from soaked import SoakedEnds

from shoal.core.clock import Deadline
from shoal.core.errors import UsageError
from shoal.launch.engines.base import EngineMachine, EngineOptions, EngineRole, JoinOrder
from shoal.launch.engines.mpi import MpiEngine
from shoal.testing import EngineRun

OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "3", "PMIX_NAMESPACE": "1234@5"}


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="Open MPI is not installed")
class TestMpi(SoakedEnds):
    size = 2
    exit_interrupted = (1, 130, 143)  # of mpirun
    fixed_machines = "MPI starts all ranks at once, and ends all of them when one is lost"

    def command(self, folder: Path) -> tuple[list[str], dict[str, str]]:
        mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]
        shoal = [sys.executable, "-m", "shoal", "run", "--on", "mpi"]
        return [*mpirun, *shoal], {"SHOAL_ADDRESS": "127.0.0.1"}

    @pytest.mark.soak("engines")
    def test_a_lost_rank_ends_the_job_and_leaves_nothing(self, tmp_path: Path) -> None:
        """What a lost node is to MPI: mpirun ends the others, and says so by its exit code."""
        with self.started(tmp_path) as run:
            run.wait_training(self.size)
            for pid in run.processes():
                with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                    if b"OMPI_COMM_WORLD_RANK=1" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                        os.kill(pid, signal.SIGKILL)
            assert run.process.wait(60.0) != 0, run.said
            run.check_tidy()
        assert not list(tmp_path.glob("runs/.mpi-*")), "invitations are left"

    def after_error(self, run: EngineRun) -> None:
        """A rank that ends badly is the end of an MPI job."""
        assert run.process.wait(60.0) != 0


def test_ranks_find_each_other_by_files_that_are_theirs_alone(tmp_path: Path) -> None:
    options = EngineOptions(workers=2, runs=tmp_path)
    head = MpiEngine(options, {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0"})
    other = MpiEngine(options, {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "2"})
    assert (head.role, other.role) == (EngineRole.HEAD, EngineRole.JOIN)
    assert [m.name for m in head.machines()] == ["rank1", "rank2"]
    head.start(EngineMachine("rank2", 2), JoinOrder("10.0.0.1:7700", "the secret\n"))
    (file,) = tmp_path.glob(".mpi-*/*.key")
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert other.receive(Deadline.after(1.0)) == ("10.0.0.1:7700", "the secret\n")
    assert not file.exists(), "it is read once"
    with pytest.raises(UsageError, match="must share the folder"):
        other.receive(Deadline.after(0.1))
    head.close()
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="started 3 ranks"):
        MpiEngine(EngineOptions(nodes=2), {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0"})
    assert os.environ.get("OMPI_COMM_WORLD_RANK") is None
