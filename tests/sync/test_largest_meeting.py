"""Under a budget, all that is not sent is kept: sent + left = all there was, on any engine, to the last bit."""

import pytest
import torch
from by_links import linked_by_files

from shoal.plan.plan import Plan
from shoal.sync.exchange.compressed import CompressedExchange
from shoal.testing.exchange import fill, taken, tensors
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.build import EngineChooser, build_exchange
from shoal.wire.bucket import lay_out

ROUNDS = 6
BUDGET = 40_000
PLAN = f"order(largest, budget={BUDGET}b)"


def exchanged(world: WorkerWorld, over_links: bool, absent: set[int], plan: str = PLAN) -> Result:
    """Gradients `absent` are missing on worker 1 in odd rounds; everything is kept as it comes and goes."""
    group = linked_by_files(world.group, world.dir) if over_links else world.group
    exchange = build_exchange(Plan.parse(plan), group, EngineChooser(group, world.dir))
    first = tensors(0, 0, torch.float32)
    buckets = exchange.open(lay_out(first, 1 << 12, [f"layer{i}" for i in range(len(first))]))
    found: Result = {}
    sent = 0
    for number in range(ROUNDS):
        exchange.prepare()
        fill(buckets, tensors(group.rank, number, torch.float32), 1.0, absent if number % 2 and group.rank else None)
        for index in range(len(buckets)):
            exchange.start(index)
        exchange.all_started()
        for index in range(len(buckets)):
            exchange.finish(index)
        found |= {f"{number}.{name}": value for name, value in taken(buckets).items()}
        found[f"{number}.sent"] = torch.tensor(exchange.observer.sent_bytes - sent)
        sent = exchange.observer.sent_bytes
        for bucket in buckets:
            bucket.reset()
    assert isinstance(exchange, CompressedExchange)
    return found | {f"left.{name.rpartition('layer')[2]}": left.clone() for name, left in exchange.state().items()}


@pytest.mark.parametrize("over_links", [False, True], ids=["memory", "links"])
@pytest.mark.parametrize("size", [2, 3])
def test_sent_and_left_are_all_there_was(size: int, over_links: bool) -> None:
    absent = {0, 5}
    results = run_world(size, lambda world: exchanged(world, over_links, absent))
    for index, first in enumerate(tensors(0, 0, torch.float32)):
        given = torch.zeros(first.shape, dtype=torch.float64)
        for rank in range(size):
            for number in range(ROUNDS):
                if not (rank and number % 2 and index in absent):
                    given += tensors(rank, number, torch.float32)[index].double()
        came = sum(results[0][f"{number}.{index}"].double() for number in range(ROUNDS))
        left = sum(result[f"left.{index}"].double().view(first.shape) for result in results)
        torch.testing.assert_close(came + left, given, atol=1e-4, rtol=1e-5)
    for result in results:
        for number in range(ROUNDS):
            assert 0 < int(result[f"{number}.sent"]) <= BUDGET
            for index in range(len(tensors(0, 0, torch.float32))):
                assert torch.equal(result[f"{number}.{index}"], results[0][f"{number}.{index}"]), "other bits"


def test_the_largest_of_all_buckets_leave_first() -> None:
    """Gradient 4 alone is far above the budget: of it only its largest pieces leave, and none of a smaller one."""

    def body(world: WorkerWorld) -> Result:
        group = world.group
        exchange = build_exchange(Plan.parse(PLAN), group, EngineChooser(group, world.dir))
        shapes = [(64, 64), (70_000,), (64, 64)]
        buckets = exchange.open(lay_out([torch.zeros(s) for s in shapes], 1 << 12, ["small", "huge", "large"]))
        gradients = [torch.full(s, scale) for s, scale in zip(shapes, (0.001, 0.01, 1.0), strict=True)]
        exchange.prepare()
        fill(buckets, gradients, 1.0)
        for index in range(len(buckets)):
            exchange.start(index)
        exchange.all_started()
        for index in range(len(buckets)):
            exchange.finish(index)
        return taken(buckets)

    for result in run_world(2, body):
        assert bool((result["2"] == 2.0).all()), "all of the largest"
        assert 0 < int((result["1"] != 0).sum()) < 70_000, "a part of the next"
        assert not result["0"].any(), "nothing of the smallest"
