"""What a worker is told by the launcher that started it."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.core.errors import UsageError
from shoal.core.ids import check_id, new_id
from shoal.core.record import run_dir, runs_root
from shoal.groups.base import SingleWorkerGroup, WorkerGroup
from shoal.groups.mpi import join_ranks
from shoal.launch import torchrun
from shoal.launch.data_seats import DataTierAddress
from shoal.launch.engines.mpi import find_rank


@dataclass(frozen=True)
class WorkerContext:
    """One worker's place in a run."""

    group: WorkerGroup
    run: str
    dir: Path
    plan: str
    """The plan's text; empty means the default plan."""
    seed: int
    begun: bool
    """Whether a launcher has written the run's first file already."""
    speed: float = 1.0
    """Below 1: this worker sleeps after computing, so that it is as slow as a host of that speed."""
    replay: bool = False
    """Computing is measured in the first steps and slept through afterwards."""
    checkpoint: str = "auto"
    """When checkpoints are taken: `auto`, `off`, a time or a number of steps."""
    resume: Path | None = None
    """The checkpoint the run goes on from."""
    attempt: int = 1
    """Above 1: the run was started before."""
    servers: str = ""
    """The folder in which server processes of this host listen, if its plan has some; empty: nobody starts any."""
    data: DataTierAddress = field(default_factory=DataTierAddress)
    """The data servers that prepare this worker's batches."""
    make: Callable[..., Any] | None = None
    """Makes the run from this context and the plan, where it is not to be Shoal's own."""


_inherited: WorkerContext | None = None


def inherit(context: WorkerContext) -> None:
    """Called by a launcher in the worker it made, before the script runs."""
    global _inherited
    _inherited = context


def find() -> WorkerContext:
    """This process's context: a launcher's, torchrun's, mpirun's, or a world of one."""
    if _inherited is not None:
        return _inherited
    group = find_group()
    # worker 0's name counts; without one in the environment each process makes its own
    (name, *_) = group.gather(os.environ.get("SHOAL_NAME", "").encode() or new_id().encode())
    run = check_id(name.decode(), "SHOAL_NAME")
    directory = run_dir(runs_root(), run)
    return WorkerContext(
        group,
        run,
        directory.absolute(),
        os.environ.get("SHOAL_PLAN", ""),
        _seed(),
        begun=False,
        checkpoint=os.environ.get("SHOAL_CHECKPOINT", "auto"),
    )


def find_group() -> WorkerGroup:
    """The workers that torchrun or mpirun has started beside this one; torchrun's variables are the nearer ones."""
    if torchrun.present():
        return torchrun.join_group()
    rank = find_rank(os.environ)
    return join_ranks(rank[1]) if rank is not None and rank[1] > 1 else SingleWorkerGroup()


def _seed() -> int:
    text = os.environ.get("SHOAL_SEED", "0")
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f"SHOAL_SEED={text!r} is not a seed; give a whole number, 0 or more")
    return int(text)
