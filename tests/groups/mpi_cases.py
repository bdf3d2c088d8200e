"""Run by `mpirun -n 3 python mpi_cases.py [TEST ...]`: the conformance case of exchanges, over MPI, in all ranks."""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from mpi4py import MPI

from shoal.groups.mpi import MpiGroup
from shoal.plan.plan import Plan
from shoal.testing import ExchangeCase, WorkerWorld, exchange
from shoal.testing.world import Result
from shoal.train.build import EngineChooser, build_exchange

SIZE = MPI.COMM_WORLD.Get_size()
LOST = "test_a_lost_worker_ends_the_wait"
"""MPI itself ends all ranks: shown from outside."""


def run_ranks(size: int, body: Callable[[WorkerWorld], Result | None], *, seconds: float = 60.0) -> list[Result]:
    """In place of forked workers: the first `size` ranks do it, and all hear what came of it."""
    rank = MPI.COMM_WORLD.Get_rank()
    part = MPI.COMM_WORLD.Split(0 if rank < size else 1, rank)
    with tempfile.TemporaryDirectory() as folder:
        result = body(WorkerWorld(MpiGroup(part), Path(folder))) if rank < size else None
    return [each for each in MPI.COMM_WORLD.allgather(result) if each is not None]


class MpiCase(ExchangeCase):
    sizes = tuple(range(2, SIZE + 1))

    def make(self, group, directory):
        made = build_exchange(Plan(), group, EngineChooser(group, directory))
        assert isinstance(group, MpiGroup)
        return made


if __name__ == "__main__":
    torch.set_num_threads(1)
    exchange.run_world = run_ranks
    for name in sys.argv[1:] or sorted(name for name in dir(MpiCase) if name.startswith("test_") and name != LOST):
        getattr(MpiCase(), name)()
        if MPI.COMM_WORLD.Get_rank() == 0:
            sys.stdout.write(f"passed {name}\n")
            sys.stdout.flush()
