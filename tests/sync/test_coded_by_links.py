"""Codecs ride links as they ride shared memory: the same payloads, bit for bit, and the same sums."""

import pytest
import torch
from by_links import linked_by_files

from shoal.groups.base import WorkerGroup
from shoal.plan.plan import Plan
from shoal.testing.exchange import fill, taken, tensors
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.build import EngineChooser, build_exchange
from shoal.wire.bucket import lay_out

ROUNDS = 3


def exchanged(world: WorkerWorld, group: WorkerGroup, plan: str, suffix: str) -> Result:
    exchange = build_exchange(Plan.parse(plan), group, EngineChooser(group, world.dir / suffix))
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
    found["wire"] = torch.tensor([exchange.observer.wire_bytes, exchange.observer.sent_bytes])
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

    def body(world: WorkerWorld) -> Result:
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


@pytest.mark.parametrize("plan", ["topk(0.1)", "onebit, meet(twostage)"])
def test_the_session_hears_that_all_is_here_before_it_is_decoded(plan: str) -> None:
    """So the others can be told meanwhile; when the last bucket has come, nothing is missing any more."""

    def body(world: WorkerWorld) -> Result:
        group = linked_by_files(world.group, world.dir)
        exchange = build_exchange(Plan.parse(plan), group, EngineChooser(group, world.dir))
        first = tensors(0, 0, torch.float32)
        buckets = exchange.open(lay_out(first, 1 << 12, [f"layer{i}" for i in range(len(first))]))
        seen: list[tuple[bool, bool]] = []
        group.session.arrived = lambda: seen.append(
            (exchange.is_complete(), all(b.result.eq(7.0).all() for b in waiting))
        )  # type: ignore[method-assign]
        exchange.prepare()
        fill(buckets, tensors(group.rank, 0, torch.float32), exchange.weight)
        for index, bucket in enumerate(buckets):
            exchange.start(index)
            bucket.result.fill_(7.0)
        for index in range(len(buckets)):
            waiting = buckets[index:]
            exchange.finish(index)
        return {"seen": torch.tensor(seen), "buckets": torch.tensor(len(buckets))}

    for found in run_world(3, body):
        assert len(found["seen"]) == found["buckets"]
        assert bool(found["seen"][:, 1].all()), "decoded before it was told"
        assert bool(found["seen"][-1, 0]), "not whole when the last had come"
