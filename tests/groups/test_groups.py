"""Every group keeps the contract of the control plane: gather and broadcast, of any size and dtype."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from by_links import by_files, by_keys
from torch import Tensor

from shoal.groups import shared_memory
from shoal.groups.base import SingleWorkerGroup, WorkerGroup
from shoal.groups.process_group import TorchGroup
from shoal.testing import run_world
from shoal.testing.world import WorkerWorld, error_of, launch_world

SIZES = (0, 1, shared_memory.MAILBOX - 8, shared_memory.MAILBOX - 7, 3 * shared_memory.MAILBOX)
DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
)


def by_memory(world: WorkerWorld) -> WorkerGroup:
    return world.group


def by_gloo(world: WorkerWorld) -> WorkerGroup:
    store = dist.FileStore(str(world.dir / "store"), world.group.size)
    return TorchGroup(store, world.group.rank, world.group.size)


KINDS = pytest.mark.parametrize("make", [by_memory, by_gloo, by_files, by_keys])


@KINDS
@pytest.mark.parametrize("size", [1, 2, 3])
def test_everybody_gathers_everything(make, size: int) -> None:
    def body(world: WorkerWorld) -> None:
        group = make(world)
        for round_ in range(3):
            wanted = [bytes([rank + round_]) * SIZES[(rank + round_) % len(SIZES)] for rank in range(size)]
            assert group.gather(wanted[group.rank]) == wanted
        assert group.gather(b"") == [b""] * size

    run_world(size, body)


@KINDS
def test_many_small_rounds_do_not_mix(make) -> None:
    def body(world: WorkerWorld) -> None:
        group = make(world)
        for number in range(200):
            assert group.gather(f"{number}/{group.rank}".encode()) == [f"{number}/{r}".encode() for r in range(2)]

    run_world(2, body)


def some_tensors(seed: int) -> list[Tensor]:
    """Of every dtype; also without dimensions, empty, transposed, strided, and longer than a mailbox."""
    random = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randint(0, 100, shape, generator=random)  # noqa: E731
    base = draw(6, 8).float()
    views = [base.t(), base[:, ::2], base[1:3]]
    return [draw(5).to(d) for d in DTYPES] + [draw().float(), torch.empty(0, 3), *views, draw(400_000).float()]


@KINDS
def test_everybody_takes_over_worker_0s_tensors(make) -> None:
    def body(world: WorkerWorld) -> None:
        group = make(world)
        mine, wanted = some_tensors(group.rank), some_tensors(0)
        strides, places = [t.stride() for t in mine], [t.data_ptr() for t in mine]
        group.broadcast(mine)
        assert all(torch.equal(got, want) for got, want in zip(mine, wanted, strict=True))
        assert ([t.stride() for t in mine], [t.data_ptr() for t in mine]) == (strides, places)

    run_world(3, body)


@KINDS
def test_parameters_may_be_broadcast(make) -> None:
    def body(world: WorkerWorld) -> dict[str, Tensor]:
        group = make(world)
        weight = torch.nn.Parameter(torch.full((3,), float(group.rank)))
        group.broadcast([weight])
        assert weight.requires_grad
        return {"weight": weight}

    assert all(result["weight"].tolist() == [0.0, 0.0, 0.0] for result in run_world(2, body))


def test_a_world_of_one_says_everything_to_itself() -> None:
    group, tensor = SingleWorkerGroup(), torch.ones(2)
    group.broadcast([tensor])
    assert (group.rank, group.size, group.gather(b"x"), tensor.tolist()) == (0, 1, [b"x"], [1.0, 1.0])


@KINDS
def test_a_lost_peer_is_one_clear_line(make) -> None:
    def body(world: WorkerWorld) -> None:
        group = make(world)
        group.gather(b"")
        if group.rank == 1:
            os._exit(7)
        group.gather(b"")

    results, codes = launch_world(2, body)
    assert codes == [1, 7]
    last = error_of(results[0]).strip().splitlines()[-1]
    assert last.startswith("shoal.core.errors.PeerLost: worker 0 stops: "), last


def test_regions_are_the_same_memory_for_all() -> None:
    def body(world: WorkerWorld) -> None:
        group = world.group
        for size in (10, 5000):
            region = group.region(size)
            region[group.rank] = group.rank + 1
            group.gather(b"")
            assert bytes(region[:4]) == b"\1\2\0\0"
            assert len(region) >= size

    run_world(2, body)


def test_too_slow_a_peer_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SHOAL_DEADLINE", "1.2")

    def body(world: WorkerWorld) -> None:
        if world.group.rank == 0:
            world.group.gather(b"")
        import time

        time.sleep(4)

    results, codes = launch_world(2, body)
    assert codes == [1, 0]
    assert "DeadlineError: worker 0 waited 1 s for worker 1 (pid" in error_of(results[0])
