"""A worker is lost in the middle of an exchange, at any stage of it: the others hold the same bits and lose nothing."""

import numpy as np
import pytest
import torch
from changing import Play, Stage, changing, residuals

from shoal.groups.base import WorkerGroup
from shoal.membership.session import member_name
from shoal.membership.view import MembershipView
from shoal.plan.plan import Plan
from shoal.plan.terms import AllReduceTerm
from shoal.sync.observer import GuardTightened
from shoal.testing import WorkerWorld, run_world
from shoal.testing.world import Result
from shoal.train.build import EngineChooser, build_exchange
from shoal.train.members import JoinedMembers
from shoal.wire import kernels
from shoal.wire.bucket import lay_out

kernels.warm()  # once here instead of once in every worker
SHAPES = {"w0": (70, 50), "w1": (33, 9), "b": (60,)}
SIZE, LOSS, ROUNDS = 3, 2, 7
"""Of all workers; the exchange the last of them is lost in; exchanges of the others."""
WEIGHT = 1 / SIZE
SURVIVORS = [member_name(slot) for slot in range(SIZE - 1)]
PLANS = [
    "lowrank(2)",
    "topk(0.1), guard(0.99, every=1)",
    "topk(0.02), by_size(0), guard(0.999, every=3)",
    "onebit",
    "onebit, meet(twostage)",
    "twobit(0.1), meet(twostage), guard(0.9, every=2)",
    "int8, feedback(on), by_size(0), meet(twostage)",
    "w0: topk(0.1), by_size(0); w1: onebit, meet(twostage); *: allreduce",
]


def gradients(rank: int, number: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * rank + number)
    return [torch.randn(shape, generator=generator) for shape in SHAPES.values()]


def play(world: WorkerWorld, group: WorkerGroup, plan: str) -> Play:
    parsed = Plan.parse(plan)
    by = parsed.exchange.by if isinstance(parsed.exchange, AllReduceTerm) else "auto"
    exchange = build_exchange(
        parsed, group, EngineChooser(group, world.dir, by), members=JoinedMembers(names=list(SHAPES))
    )
    buckets = exchange.open(lay_out(gradients(0, 0), 1 << 10, list(SHAPES), list(map(exchange.part_of, SHAPES))))
    assert exchange.retryable
    return Play(exchange, buckets, world.dir)


def train(world: WorkerWorld, links: bool, plan: str, stage: Stage) -> Result:
    group, session = changing(world, links)
    mine, rank = play(world, group, plan), group.rank
    for number in range(LOSS):
        mine.round(gradients(rank, number), WEIGHT)
    if rank == SIZE - 1:
        return leave(mine, stage)
    mine.begin(gradients(rank, LOSS), WEIGHT)
    mine.lose(stage, rank, session, SURVIVORS)
    for number in range(LOSS + 1, ROUNDS):
        mine.round(gradients(rank, number), WEIGHT)
    return {"results": torch.stack(mine.results), **residuals(mine.exchange), **decisions(mine)}


def leave(mine: Play, stage: Stage) -> Result:
    """The last worker; what it leaves behind is what waited there when its last word counted."""
    before = residuals(mine.exchange)
    if stage is not Stage.absent:
        mine.begin(gradients(SIZE - 1, LOSS), WEIGHT)
    if stage in (Stage.finished, Stage.whole):
        mine.finish()
    mine.say("left")
    return residuals(mine.exchange) if stage is Stage.whole else before


def decisions(mine: Play) -> Result:
    """What all must know alike."""
    words = [
        (d.cosine, d.ratio or 0.0) for d in mine.exchange.observer.take_decisions() if isinstance(d, GuardTightened)
    ]
    shared = [tensor.double().view(-1) for tensor in mine.exchange.shared().values()]
    return {"words": torch.tensor(words), "shared": torch.cat([torch.zeros(0), *shared])}


def due(stage: Stage) -> torch.Tensor:
    """All that went in and counts."""
    counted = LOSS + (stage is Stage.whole)
    parts = [(rank, number) for rank in range(SIZE) for number in range(ROUNDS if rank < SIZE - 1 else counted)]
    return sum(_flat(gradients(*part)) for part in parts) * WEIGHT


def _flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.view(-1) for tensor in tensors])


def waiting(result: Result) -> torch.Tensor:
    """Residuals of a worker, in the order of layers."""
    return _flat([result.get(f"residual_{name}", torch.zeros(shape)) for name, shape in SHAPES.items()])


SHORT = {(PLANS[0], True), (PLANS[2], False), (PLANS[4], True), (PLANS[-1], True)}
"""What `make test` runs, at every stage; `make soak` runs every plan over both."""


@pytest.mark.parametrize("stage", list(Stage), ids=lambda stage: stage.name)
@pytest.mark.parametrize(
    ("plan", "links"),
    [
        pytest.param(plan, links, marks=[] if (plan, links) in SHORT else [pytest.mark.soak])
        for plan in PLANS
        for links in (False, True)
    ],
)
def test_the_others_go_on_with_the_same_bits_and_nothing_is_lost(plan: str, stage: Stage, links: bool) -> None:
    results = run_world(SIZE, lambda world: train(world, links, plan, stage))
    one, two = results[:2]
    for name in ("results", "words", "shared"):
        assert torch.equal(one[name], two[name]), name
    total = one["results"].sum(0) + sum(waiting(result) for result in results)
    torch.testing.assert_close(total, due(stage), atol=2e-5, rtol=0)


@pytest.mark.parametrize("stage", [Stage.started, Stage.whole], ids=lambda stage: stage.name)
@pytest.mark.parametrize("by", ["tree", "chain", "star", "butterfly"])
def test_a_topology_is_made_anew_without_a_lost_worker(by: str, stage: Stage) -> None:
    one, two, _ = results = run_world(SIZE, lambda world: train(world, True, f"allreduce({by})", stage))
    assert torch.equal(one["results"], two["results"])
    assert not any(waiting(result).any() for result in results)
    torch.testing.assert_close(one["results"].sum(0), due(stage), atol=2e-5, rtol=0)


def replaced(world: WorkerWorld, plan: str) -> Result:
    """The last worker is lost, and another takes its slot and what all others share."""
    group, session = changing(world, links=False)
    mine, rank = play(world, group, plan), group.rank
    for number in range(LOSS):
        mine.round(gradients(rank, number), WEIGHT)
    members = [*SURVIVORS, member_name(SIZE - 1, 1)]
    lost = residuals(mine.exchange)
    if rank < SIZE - 1:
        mine.begin(gradients(rank, LOSS), WEIGHT)
        mine.lose(Stage.absent, rank, session, SURVIVORS)
        session.change(members, members[-1:])
        hand_over(mine, rank)
    else:
        mine.say("left")
        mine.wait("handed-0")
        group, session = changing(world, links=False, view=MembershipView(3, tuple(members)), start=1)
        mine = play(world, group, plan)
        with np.load(world.dir / "shared.npz") as data:
            mine.exchange.load({name: torch.from_numpy(data[name]) for name in data.files})
    for number in range(LOSS + 1, ROUNDS):
        mine.round(gradients(rank, number), WEIGHT)
    found = {"results": torch.stack(mine.results), **residuals(mine.exchange), **decisions(mine)}
    return found | ({f"lost_{name}": tensor for name, tensor in lost.items()} if rank == SIZE - 1 else {})


def hand_over(mine: Play, rank: int) -> None:
    if rank == 0:
        np.savez(mine.folder / "shared.npz", **{name: t.numpy() for name, t in mine.exchange.shared().items()})
        mine.say("handed-0")


@pytest.mark.parametrize("plan", [*PLANS[:3], *PLANS[4:]])
def test_a_newcomer_knows_what_the_others_share(plan: str) -> None:
    one, two, three = run_world(SIZE, lambda world: replaced(world, plan))
    assert torch.equal(one["results"], two["results"])
    assert torch.equal(one["results"][LOSS + 1 :], three["results"])
    assert torch.equal(one["words"], two["words"])
    for other in (two, three):
        assert torch.equal(one["shared"], other["shared"])
    lost = {name.removeprefix("lost_"): tensor for name, tensor in three.items() if name.startswith("lost_")}
    total = one["results"].sum(0) + sum(waiting(result) for result in (one, two, three, lost))
    missed = _flat(gradients(SIZE - 1, LOSS)) * WEIGHT
    parts = [(rank, number) for rank in range(SIZE) for number in range(ROUNDS)]
    torch.testing.assert_close(total, sum(_flat(gradients(*p)) for p in parts) * WEIGHT - missed, atol=2e-5, rtol=0)
