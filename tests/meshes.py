"""Meshes of several workers inside one process: each has its own thread and sockets, and nothing else."""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from shoal.sync.engine.algorithms.base import DtypeArithmetic, SumTask
from shoal.sync.engine.algorithms.ring import RingAllReduce
from shoal.transport.endpoint import BookEntry, LinkEndpoint, book_in
from shoal.transport.keys import CurveKeyPair
from shoal.transport.mesh import LinkMesh
from shoal.transport.rate_limit import RateLimit

WAIT = 60.0


class Killed(BaseException):
    """Ends a communication thread as kill -9 would end its process: no last words."""


def kill(mesh: LinkMesh) -> None:
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
    allowance: RateLimit | None = None,
) -> Iterator[list[LinkMesh]]:
    """`size` of them that have met; over files in `folder`, else over loopback under keys.

    `through` makes the address at which the others find a endpoint of its own: that of a proxy, say.
    """
    keys = [CurveKeyPair.new() for _ in range(size)]
    if folder is not None:
        entries = book_in(folder / f"sockets-{os.getpid()}", size)
        endpoints = [LinkEndpoint(entries[rank].address) for rank in range(size)]
    else:
        endpoints = [LinkEndpoint("tcp://127.0.0.1:*", keys[rank]) for rank in range(size)]
        entries = {
            rank: BookEntry(through(endpoints[rank].address), keys[rank].public, "abcdefgh"[rank])
            for rank in range(size)
        }
    made = [
        LinkMesh("run", entries, rank, endpoints[rank], silence=silence, allowance=allowance) for rank in range(size)
    ]
    try:
        for mesh in made:
            mesh.wait_for_peers(WAIT)
        yield made
    finally:
        for mesh in made:
            mesh._lost = mesh.rank  # do not wait for what will not be acknowledged
            mesh.close()


def begin(
    made: Sequence[LinkMesh], tensors: Sequence[Tensor], kind: type[SumTask] = RingAllReduce
) -> list[tuple[SumTask, Tensor]]:
    """Everybody hands in its tensor."""
    tasks = []
    for mesh, tensor in zip(made, tensors, strict=True):
        arithmetic, result = DtypeArithmetic(tensor.dtype), torch.zeros_like(tensor)
        task = kind(arithmetic.array(tensor), arithmetic.array(result), arithmetic)
        mesh.submit(task)
        tasks.append((task, result))
    return tasks


def total(made: Sequence[LinkMesh], tensors: Sequence[Tensor], kind: type[SumTask] = RingAllReduce) -> list[Tensor]:
    """Everybody's result of a sum."""
    tasks = begin(made, tensors, kind)
    for mesh, (task, _) in zip(made, tasks, strict=True):
        mesh.wait(task, WAIT)
    return [result for _, result in tasks]


def numbers(count: int, numel: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Whole numbers, so that sums are exact in any order."""
    generator = torch.Generator().manual_seed(numel)
    return [torch.randint(-8, 8, (numel,), generator=generator).to(dtype) for _ in range(count)]
