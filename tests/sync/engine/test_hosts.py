"""Hosts with several workers: the same sums as without them, the same bits everywhere, and one stream per host."""

import os
from pathlib import Path

import torch
from by_links import linked_by_files

from shoal.groups.base import WorkerGroup
from shoal.groups.links import LinkedGroup
from shoal.groups.shared_memory import SharedGroup
from shoal.hosts.arena import SharedArena
from shoal.sync.engine.hierarchical import HierarchicalEngine
from shoal.sync.exchange.allreduce import AllReduceExchange
from shoal.sync.exchange.base import GradientExchange
from shoal.testing.exchange import ExchangeCase
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.wire.bucket import BucketSpace

PER_HOST = 2


def on_hosts(group: WorkerGroup, folder: Path) -> LinkedGroup:
    """Two workers make a host; the last may be alone on its own."""
    linked = linked_by_files(group, folder)
    first = group.rank - group.rank % PER_HOST
    arena = SharedArena.create() if group.rank == first else None
    told = group.gather(f"{os.getpid()}:{arena.descriptor}".encode() if arena is not None else b"")
    pid, descriptor = (int(word) for word in told[first].decode().split(":"))
    arena = arena or SharedArena.of_process(pid, descriptor)
    linked.settle_hosts(SharedGroup(arena, group.rank - first, min(PER_HOST, group.size - first)))
    return linked


class TestHosts(ExchangeCase):
    sizes = (3, 4)

    def make(self, group: WorkerGroup, directory: Path) -> GradientExchange:
        linked = on_hosts(group, directory)
        return AllReduceExchange(linked, lambda _device: HierarchicalEngine(linked))


def test_only_leaders_speak_between_hosts() -> None:
    def body(world: WorkerWorld) -> Result:
        group = on_hosts(world.group, world.dir)
        engine = HierarchicalEngine(group)
        ((leaving, result),) = engine.open([BucketSpace(100_000, torch.float32, torch.device("cpu"))])
        for number in range(3):
            engine.prepare()
            leaving.fill_(group.rank + number)
            engine.start(0)
            engine.finish(0)
            assert (result == 6 + 4 * number).all()
            result.zero_()  # what came back belongs to the caller
        wire = engine.wire_bytes(0)
        return {"wire": torch.tensor(wire), "leaders": torch.tensor(group.leaders)}

    results = run_world(4, body)
    assert [int(result["wire"]) for result in results] == [400_000, 0, 400_000, 0]
    assert all(result["leaders"].tolist() == [0, 2] for result in results)
