"""Meshes of several workers inside one process: each has its own thread and sockets, and nothing else."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from shoal.cluster.links.allowance import Allowance
from shoal.cluster.links.book import Entry, book_in
from shoal.cluster.links.door import Door
from shoal.cluster.links.keys import Keys
from shoal.cluster.links.mesh import Mesh
from shoal.sync.engine.sums.arithmetic import Arithmetic
from shoal.sync.engine.sums.base import Sum
from shoal.sync.engine.sums.ring import Ring

WAIT = 60.0


class Killed(BaseException):
    """Ends a communication thread as kill -9 would end its process: no last words."""


def kill(mesh: Mesh) -> None:
    def die() -> None:
        raise Killed

    mesh.loop.call(die)
    mesh.loop.join(WAIT)


@contextlib.contextmanager
def meshes(
    size: int,
    folder: Path | None = None,
    silence: float = 30.0,
    through: Callable[[str], str] = str,
    allowance: Allowance | None = None,
) -> Iterator[list[Mesh]]:
    """`size` of them that have met; over files in `folder`, else over loopback under keys.

    `through` makes the address at which the others find a door of its own: that of a proxy, say.
    """
    keys = [Keys.new() for _ in range(size)]
    if folder is not None:
        entries = book_in(folder / f"sockets-{os.getpid()}", size)
        doors = [Door(entries[rank].address) for rank in range(size)]
    else:
        doors = [Door("tcp://127.0.0.1:*", keys[rank]) for rank in range(size)]
        entries = {
            rank: Entry(through(doors[rank].address), keys[rank].public, "abcdefgh"[rank]) for rank in range(size)
        }
    made = [Mesh("run", entries, rank, doors[rank], silence=silence, allowance=allowance) for rank in range(size)]
    try:
        for mesh in made:
            mesh.meet(WAIT)
        yield made
    finally:
        for mesh in made:
            mesh._lost = mesh.rank  # do not wait for what will not be acknowledged
            mesh.close()


def begin(made: Sequence[Mesh], tensors: Sequence[Tensor], kind: type[Sum] = Ring) -> list[tuple[Sum, Tensor]]:
    """Everybody hands in its tensor."""
    tasks = []
    for mesh, tensor in zip(made, tensors, strict=True):
        arithmetic, result = Arithmetic(tensor.dtype), torch.zeros_like(tensor)
        task = kind(arithmetic.array(tensor), arithmetic.array(result), arithmetic)
        mesh.submit(task)
        tasks.append((task, result))
    return tasks


def total(made: Sequence[Mesh], tensors: Sequence[Tensor], kind: type[Sum] = Ring) -> list[Tensor]:
    """Everybody's result of a sum."""
    tasks = begin(made, tensors, kind)
    for mesh, (task, _) in zip(made, tasks, strict=True):
        mesh.wait(task, WAIT)
    return [result for _, result in tasks]


def numbers(count: int, numel: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Whole numbers, so that sums are exact in any order."""
    generator = torch.Generator().manual_seed(numel)
    return [torch.randint(-8, 8, (numel,), generator=generator).to(dtype) for _ in range(count)]
