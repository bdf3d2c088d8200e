"""Members come and go, inside and between exchanges: all that are there hold the same bits, and nothing is lost."""

from itertools import pairwise

import pytest
import torch
from changing import Play, Stage, Told, changing, residuals

from shoal.core.errors import ViewEnded
from shoal.membership.session import member_name
from shoal.membership.view import MembershipView
from shoal.plan.plan import Plan
from shoal.sync.aggregate.base import StatefulAggregator
from shoal.sync.aggregate.elastic import ElasticAggregator
from shoal.sync.aggregate.gather import GatherAggregator
from shoal.sync.engine.base import PayloadEngine
from shoal.sync.observer import ExchangeObserver
from shoal.testing import WorkerWorld, run_world
from shoal.testing.world import Result
from shoal.train.build import EngineChooser, build_exchange
from shoal.wire import kernels
from shoal.wire.bucket import lay_out
from shoal.wire.codecs.onebit import OneBitCodec
from shoal.wire.layout import FlatLayout
from shoal.wire.wrappers.feedback import ErrorFeedback
from shoal.wire.wrappers.parts import PartialCodec

kernels.warm()  # once here instead of once in every worker
SHAPES = {"w0": (130, 90), "w1": (33, 9), "b": (60,)}
SIZE, ROUNDS, WEIGHT = 4, 2, 0.25
"""Workers there ever are; exchanges in each view, beside the one a loss ends."""
VIEWS = [(0, 1), (0, 1, 2), (1, 2), (1, 2, 3), (1, 3), (1,)]
"""Slots: more than there were at first, another order of ranks, and one that is left alone."""
STAGES = list(Stage)
PLANS = ["onebit, meet(twostage)", "twobit(0.1), by_size(0), meet(twostage)", "int8, feedback(on), meet(twostage)"]


def gradients(slot: int, number: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * slot + number)
    return [torch.randn(shape, generator=generator) for shape in SHAPES.values()]


def _flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.view(-1) for tensor in tensors])


def enter(session: Told, slot: int, slots: tuple[int, ...]) -> None:
    members = [member_name(each) for each in slots]
    if slot in slots:
        session.change(members)
    else:
        session.view = MembershipView(session.view.generation + 1, tuple(members))


def live(world: WorkerWorld, links: bool, plan: str, first: int) -> Result:
    """One worker in all views it is in; the stage of the first loss is number `first`."""
    group, session = changing(world, links)
    slot, number, losses, found = world.group.slot, 0, first, Result()
    enter(session, slot, VIEWS[0])
    exchange = build_exchange(Plan.parse(plan), group, EngineChooser(group, world.dir))
    buckets = exchange.open(lay_out(gradients(0, 0), 1 << 14, list(SHAPES)))
    assert exchange.retryable
    mine = Play(exchange, buckets, world.dir)
    for now, then in pairwise([*VIEWS, ()]):
        for _ in range(ROUNDS):
            if slot in now:
                mine.round(gradients(slot, number), WEIGHT)
                found |= {f"result{number}": mine.results[-1], f"staged{number}": staged(mine)}
            number += 1
        lost = set(now) - set(then)
        if not then or not lost:  # nobody comes or goes in the middle
            if then:
                enter(session, slot, then)
            continue
        mine.folder = world.dir / f"loss{losses}"
        mine.folder.mkdir(exist_ok=True)
        stage = STAGES[losses % len(STAGES)]
        if slot in lost:
            return found | leave(mine, stage, gradients(slot, number))
        if slot in then:
            mine.begin(gradients(slot, number), WEIGHT)
            mine.lose(stage, then.index(slot), session, [member_name(each) for each in then])
            found |= {f"result{number}": mine.results[-1], f"staged{number}": staged(mine)}
        else:
            enter(session, slot, then)
        number, losses = number + 1, losses + 1
    return found | residuals(mine.exchange)


def staged(mine: Play) -> torch.Tensor:
    return torch.tensor(mine.exchange.observer.aggregation == "twostage")


def leave(mine: Play, stage: Stage, offered: list[torch.Tensor]) -> Result:
    """What a lost worker leaves behind is what waited there when its last word counted."""
    before = residuals(mine.exchange)
    if stage is not Stage.absent:
        mine.begin(offered, WEIGHT)
    if stage in (Stage.finished, Stage.whole):
        mine.finish()
    mine.say("left")
    return residuals(mine.exchange) if stage is Stage.whole else before


def counted(first: int) -> list[tuple[int, ...]]:
    """The slots whose parts are in each exchange."""
    found, losses = [], first
    for now, then in pairwise([*VIEWS, ()]):
        found += [now] * ROUNDS
        if then and set(now) - set(then):
            found.append(now if STAGES[losses % len(STAGES)] is Stage.whole else then)
            losses += 1
    return found


def check(plan: str, links: bool, first: int) -> list[Result]:
    results = run_world(SIZE, lambda world: live(world, links, plan, first), seconds=110)
    due = sum(_flat(gradients(slot, number)) for number, slots in enumerate(counted(first)) for slot in slots) * WEIGHT
    total = torch.zeros(due.numel())
    for number in range(len(counted(first))):
        same = [result[f"result{number}"] for result in results if f"result{number}" in result]
        assert all(torch.equal(one, same[0]) for one in same), f"replicas differ after exchange {number}"
        total += same[0]
    for result in results:
        total += _flat([result.get(f"residual_{name}", torch.zeros(shape)) for name, shape in SHAPES.items()])
    torch.testing.assert_close(total, due, atol=5e-5, rtol=0)
    return results


@pytest.mark.parametrize("links", [False, True], ids=["memory", "links"])
@pytest.mark.parametrize("first", [1, *(pytest.param(n, marks=pytest.mark.soak) for n in (0, 2, 3))])
@pytest.mark.parametrize("plan", [PLANS[0], *(pytest.param(plan, marks=pytest.mark.soak) for plan in PLANS[1:])])
def test_all_hold_the_same_bits_and_nothing_is_lost(plan: str, first: int, links: bool) -> None:
    for result in check(plan, links, first):
        assert all(bool(value) for name, value in result.items() if name.startswith("staged"))


def test_the_way_follows_the_number_of_workers_between_hosts() -> None:
    """Two gather, three meet in two stages: nobody tells a newcomer, who counts them too."""
    results = check("int8, feedback(on)", links=True, first=1)
    for result in results:
        for number, slots in enumerate(counted(1)):
            if f"staged{number}" in result:
                assert bool(result[f"staged{number}"]) == (len(slots) > 2), number


class Alone(PayloadEngine):
    """Gives everybody's payloads to the one worker there is; a view ends whenever the test says so."""

    retryable = True

    def __init__(self) -> None:
        self.ends, self.posted = False, dict[int, torch.Tensor]()

    def open(self, specs):
        self.areas = [torch.zeros(spec.area, dtype=torch.uint8) for spec in specs]
        return self.areas

    def prepare(self) -> None:
        self.posted = {}
        if self.ends:
            raise ViewEnded("the members change")

    def post(self, index: int, length: int) -> None:
        self.posted[index] = self.areas[index][:length].clone()

    def collect(self, index: int) -> list[torch.Tensor]:
        return [self.posted[index]]

    def release(self, index: int) -> None: ...

    def wire_bytes(self, index: int) -> int:
        return 0

    def is_complete(self) -> bool:
        return True


def test_views_that_end_while_it_begins_again_change_nothing() -> None:
    """However often: the residual is what one round would have left, and until then nothing is whole."""
    engine, place, layout = Alone(), [0, 1], FlatLayout.of([("w", (40, 30))])
    values, out, once = torch.randn(1200), torch.zeros(1200), torch.zeros(1200)

    def make(rank: int, size: int) -> StatefulAggregator:
        return GatherAggregator(PartialCodec(ErrorFeedback(OneBitCodec())), engine, rank, 0)

    aggregator = ElasticAggregator(engine, make, lambda: (place[0], place[1]))
    aggregator.open([layout], ExchangeObserver())
    for _ in range(2):
        aggregator.prepare()
        aggregator.start(0, values, [True])
        aggregator.finish(0, once)
    expected = aggregator.state()["residual.w"].clone()
    assert aggregator.is_complete()
    for rank in (1, 2, 2):
        place[0], engine.ends = rank, True
        aggregator.retry()
        with pytest.raises(ViewEnded):
            aggregator.finish(0, out)
        assert not aggregator.is_complete()
        assert not aggregator.is_done(0)
    engine.ends = False
    aggregator.retry()
    assert aggregator.finish(0, out) == [1.0]
    assert aggregator.is_complete()
    assert torch.equal(out, once)
    assert torch.equal(aggregator.state()["residual.w"], expected)
    aggregator.prepare()
    aggregator.retry()
    assert aggregator.is_complete(), "nothing was offered, so there is nothing to do again"
