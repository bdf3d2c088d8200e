"""Hosts with several workers where members are lost: the first that is left speaks for its host, and no bit differs."""

from collections.abc import Sequence

import pytest
import torch
from changing import Play, Stage
from changing_hosts import changing_hosts

from shoal.membership.session import member_name
from shoal.plan.plan import Plan
from shoal.testing import WorkerWorld, run_world
from shoal.testing.world import Result
from shoal.train.build import EngineChooser, build_exchange
from shoal.wire.bucket import lay_out

SHAPES = {"w0": (70, 50), "w1": (33, 9), "b": (60,)}
LOSS, ROUNDS = 2, 6
TWO_AND_TWO = ("a", "a", "b", "b")
LAST_ALONE = ("a", "a", "b")
LAST_LEADS = ("a", "b", "a", "b")
"""By slot: which machine."""


def gradients(rank: int, number: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * rank + number)
    return [torch.randn(shape, generator=generator) for shape in SHAPES.values()]


def train(world: WorkerWorld, host_groups: Sequence[str], stage: Stage, plan: str) -> Result:
    size, rank = len(host_groups), world.group.rank
    group, session = changing_hosts(world, host_groups, rank)
    exchange = build_exchange(Plan.parse(plan), group, EngineChooser(group, world.dir))
    buckets = exchange.open(lay_out(gradients(0, 0), 1 << 10, list(SHAPES)))
    assert exchange.retryable
    mine = Play(exchange, buckets, world.dir)
    for number in range(LOSS):
        mine.round(gradients(rank, number), 1 / size)
    if rank == size - 1:
        if stage is not Stage.absent:
            mine.begin(gradients(rank, LOSS), 1 / size)
        if stage in (Stage.finished, Stage.whole):
            mine.finish()
        mine.say("left")
        return {"results": torch.zeros(0)}
    mine.begin(gradients(rank, LOSS), 1 / size)
    mine.lose(stage, rank, session, [member_name(slot) for slot in range(size - 1)], group.leaders)
    for number in range(LOSS + 1, ROUNDS):
        mine.round(gradients(rank, number), 1 / size)
    return {"results": torch.stack(mine.results), "leaders": torch.tensor(group.leaders)}


def due(size: int, stage: Stage, number: int) -> torch.Tensor:
    there = size if number < LOSS or (number == LOSS and stage is Stage.whole) else size - 1
    return sum(torch.cat([t.view(-1) for t in gradients(rank, number)]) for rank in range(there)) / size


@pytest.mark.parametrize("host_groups", [TWO_AND_TWO, LAST_ALONE, LAST_LEADS], ids="".join)
@pytest.mark.parametrize("stage", list(Stage), ids=lambda stage: stage.name)
def test_the_others_go_on_with_the_same_bits(host_groups: Sequence[str], stage: Stage) -> None:
    results = run_world(len(host_groups), lambda world: train(world, host_groups, stage, "allreduce"))[:-1]
    for result in results:
        assert torch.equal(result["results"], results[0]["results"])
    for number, found in enumerate(results[0]["results"]):
        torch.testing.assert_close(found, due(len(host_groups), stage, number), atol=1e-6, rtol=0)
    assert results[0]["leaders"].tolist() == [host_groups.index(name) for name in dict.fromkeys(host_groups[:-1])]


def lose_the_leader(world: WorkerWorld) -> Result:
    """Slots are dealt so that the last, which is lost, has led its host_group: those behind it in rank stay."""
    host_groups, order = ("a", "b", "b", "b"), (0, 3, 1, 2)
    group, session = changing_hosts(world, host_groups, world.group.slot)
    members = [member_name(slot) for slot in order]
    session.change(members)
    rank = session.view.rank(session.member)
    exchange = build_exchange(Plan(), group, EngineChooser(group, world.dir))
    buckets = exchange.open(lay_out(gradients(0, 0), 1 << 10, list(SHAPES)))
    mine = Play(exchange, buckets, world.dir)
    mine.round(gradients(rank, 0), 0.25)
    mine.begin(gradients(rank, 1), 0.25)
    if rank == 1:
        mine.say("left")
        return {"results": torch.zeros(0)}
    assert group.leaders == [0, 3]
    mine.lose(Stage.started, {0: 0, 2: 1, 3: 2}[rank], session, [members[r] for r in (0, 2, 3)])
    assert group.leaders == [0, 1]
    mine.round(gradients(rank, 2), 0.25)
    return {"results": torch.stack(mine.results)}


def test_another_speaks_for_a_house_whose_leader_is_lost() -> None:
    results = [result["results"] for result in run_world(4, lose_the_leader)]
    living = [result for result in results if len(result)]
    assert len(living) == 3
    assert all(torch.equal(result, living[0]) for result in living)
    for number, there in enumerate(((0, 1, 2, 3), (0, 2, 3), (0, 2, 3))):
        wanted = sum(torch.cat([t.view(-1) for t in gradients(rank, number)]) for rank in there) / 4
        torch.testing.assert_close(living[0][number], wanted, atol=1e-6, rtol=0)
