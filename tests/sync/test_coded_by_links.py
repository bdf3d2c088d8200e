"""Codecs ride links as they ride shared memory: the same payloads, bit for bit, and the same sums."""

import pytest
import torch
from by_links import linked_by_files

from shoal.cluster.group import Group
from shoal.plan.plan import Plan
from shoal.testing.exchange import fill, taken, tensors
from shoal.testing.world import Result, World, run_world
from shoal.train.build import Engines, build_exchange
from shoal.wire.bucket import lay_out

ROUNDS = 3


def exchanged(world: World, group: Group, plan: str, suffix: str) -> Result:
    exchange = build_exchange(Plan.parse(plan), group, Engines(group, world.dir / suffix))
    first = tensors(0, 0, torch.float32)
    buckets = exchange.open(lay_out(first, 1 << 12, [f"layer{i}" for i in range(len(first))]))
    found: Result = {}
    for number in range(ROUNDS):
        exchange.prepare()
        fill(buckets, tensors(group.rank, number, torch.float32), exchange.weight)
        for index in range(len(buckets)):
            exchange.start(index)
        for index in range(len(buckets)):
            exchange.finish(index)
        found |= {f"{number}.{name}": value for name, value in taken(buckets).items()}
        for bucket in buckets:
            bucket.reset()
    found["wire"] = torch.tensor([exchange.wire, exchange.sent])
    return found


@pytest.mark.parametrize(
    ("plan", "tolerance"),
    [
        ("topk(0.1)", 0.0),
        ("onebit, meet(gather)", 0.0),
        ("qsgd(4), meet(gather)", 0.0),
        ("fp16", 1e-3),
        ("lowrank(1)", 1e-5),
    ],
)
def test_the_same_as_in_memory(plan: str, tolerance: float) -> None:
    """Payloads are the same bits; sums over links begin with the owner of a part, in memory with worker 0."""

    def body(world: World) -> Result:
        linked = linked_by_files(world.group, world.dir)
        one = exchanged(world, world.group, plan, "memory")
        other = exchanged(world, linked, plan, "links")
        return {f"memory.{k}": v for k, v in one.items()} | {f"links.{k}": v for k, v in other.items()}

    results = run_world(3, body)
    for found in results:
        for name, value in found.items():
            if name.startswith("memory.") and not name.endswith("wire"):
                other = found["links" + name[len("memory") :]]
                torch.testing.assert_close(value, other, rtol=tolerance, atol=tolerance, msg=name)
        assert int(found["memory.wire"][0]) == 0
        assert int(found["links.wire"][0]) > 0
