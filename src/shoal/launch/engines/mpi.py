"""`mpirun … shoal run --on mpi train.py`: every rank is a machine; rank 0 is the head, the others join it.

MPI only starts the processes and ends them all when one is lost; the training's messages are Shoal's own. Ranks are
known by the variables of Open MPI, MPICH or Intel MPI; invitations lie in the folder of runs, which all ranks see.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from shoal.core.clock import Deadline
from shoal.core.errors import UsageError
from shoal.launch.engines.base import EngineMachine, EngineOptions, EngineRole, JoinOrder, LaunchEngine
from shoal.launch.engines.findings import DoctorFinding
from shoal.launch.engines.rendezvous import FileRendezvous

RANKS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE")),
    ("PMI_RANK", "PMI_SIZE", ("PMI_ID", "HYDI_CONTROL_FD", "I_MPI_HYDRA_UUID")),
)
"""Rank, size and something that no two jobs share, by implementation."""


def find_rank(environment: Mapping[str, str]) -> tuple[int, int, str] | None:
    """Rank, size and the job's name; None: this process was not started by MPI."""
    for rank, size, jobs in RANKS:
        if rank in environment and size in environment:
            job = next((environment[name] for name in jobs if name in environment), "job")
            return int(environment[rank]), int(environment[size]), job
    return None


class MpiEngine(LaunchEngine):
    """The engine has started everything before this is made."""

    name = "mpi"

    def __init__(self, options: EngineOptions, environment: Mapping[str, str] | None = None) -> None:
        super().__init__(options)
        found = find_rank(os.environ if environment is None else environment)
        self._found = found
        if options.where:
            raise UsageError(f"--on mpi:{options.where}: mpirun says where the ranks are; write --on mpi")
        if found is not None and options.nodes is not None and options.nodes != found[1]:
            raise UsageError(f"--nodes {options.nodes}: mpirun has started {found[1]} ranks; drop --nodes")
        # Only what a file name may hold; without a job's name, mpirun's process number tells two jobs of a machine
        # apart.
        job = "".join(letter for letter in (found[2] if found else "") if letter.isalnum() or letter in "-.")
        self._meeting = FileRendezvous(options.runs, f"mpi-{job}-{os.getppid() if job == 'job' else 0}")

    @property
    def _rank(self) -> tuple[int, int]:
        if self._found is None:
            raise UsageError("--on mpi: mpirun has not started this; type mpirun -n 4 shoal run --on mpi train.py")
        return self._found[0], self._found[1]

    @property
    def role(self) -> EngineRole:
        return EngineRole.JOIN if self._rank[0] else EngineRole.HEAD

    @property
    def own_name(self) -> str:
        return f"rank{self._rank[0]}"

    def machines(self) -> list[EngineMachine]:
        return [EngineMachine(f"rank{rank}", self.options.workers) for rank in range(1, self._rank[1])]

    def start(self, machine: EngineMachine, order: JoinOrder) -> None:
        self._meeting.give(machine.name, order)

    def receive(self, deadline: Deadline) -> tuple[str, str]:
        return self._meeting.take(self.own_name, deadline)

    def close(self) -> None:
        self._meeting.close()

    def findings(self) -> list[DoctorFinding]:
        command = shutil.which("mpirun") or shutil.which("mpiexec")
        found = DoctorFinding(
            "mpirun", command or "not found", bool(command), "install Open MPI (apt install openmpi-bin)"
        )
        runs = Path(self.options.runs)
        return [found, DoctorFinding("shared folder", f"{runs}: all ranks must see it; give another with --runs")]
