"""Two stages: the exchange's own case on every engine, the same bits everywhere, and nothing lost on either side."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from by_links import linked_by_files

from shoal.core.errors import PayloadError, UsageError
from shoal.groups.base import WorkerGroup
from shoal.plan.plan import Plan
from shoal.sync.aggregate.share_payload import add_share
from shoal.sync.aggregate.two_stage import TwoStageAggregator
from shoal.sync.engine.shared_memory_payloads import SharedMemoryPayloads
from shoal.sync.exchange.allreduce import AllReduceExchange
from shoal.sync.exchange.compressed import CompressedExchange
from shoal.sync.observer import ExchangeObserver
from shoal.testing import ExchangeCase, WorkerWorld, run_world
from shoal.testing.exchange import SHAPES, fill, taken, tensors
from shoal.testing.world import Result
from shoal.train.build import EngineChooser, build_exchange
from shoal.train.checkpoint.residuals import dealt_again
from shoal.wire import kernels
from shoal.wire.bucket import lay_out
from shoal.wire.codecs.int8 import Int8Codec
from shoal.wire.codecs.onebit import OneBitCodec
from shoal.wire.codecs.topk import TopKCodec
from shoal.wire.codecs.twobit import TwoBitCodec
from shoal.wire.layout import FlatLayout
from shoal.wire.redeal import folded
from shoal.wire.wrappers.feedback import ErrorFeedback
from shoal.wire.wrappers.parts import PartialCodec

kernels.warm()  # once here instead of once in every worker
PLANS = ["onebit", "twobit(0.05)", "ternary", "int8", "qsgd", "fixed", "int8, feedback(on)", "onebit, by_name(w1)"]


class TwoStageCase(ExchangeCase):
    """Everything travels as it is, so that all that is left to test is the way."""

    def make(self, group, directory):
        engines = EngineChooser(group, directory)
        codec = PartialCodec(Int8Codec(), least=1 << 40)
        return CompressedExchange(
            AllReduceExchange(group, engines.of),
            lambda _: TwoStageAggregator(codec, engines.payloads(), group.rank, group.size, 0),
        )

    def open(self, world, dtype=torch.float32, capacity=1 << 12):
        exchange = self.make(world.group, world.dir)
        return exchange, exchange.open(
            lay_out(tensors(0, 0, dtype), capacity, [f"layer{i}" for i in range(len(SHAPES))])
        )

    def test_mean_float64(self):
        self.check_mean(self.sizes[0], torch.float64, 1e-6)  # codecs take float32


class TestTwoStagesInMemory(TwoStageCase):
    sizes = (3, 2)  # many rounds are made by the last


class TestTwoStagesByGloo(TwoStageCase):
    sizes = (2,)

    @pytest.fixture(autouse=True)
    def _engine(self, monkeypatch):
        monkeypatch.setenv("SHOAL_ENGINE", "collective")


def gradients(rank: int, number: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * rank + number)
    return [torch.randn(70, 50, generator=generator), torch.randn(33, 9, generator=generator),
            torch.randn(60, generator=generator)]  # fmt: skip


def exchanged(
    world: WorkerWorld,
    group: WorkerGroup,
    plan: str,
    rounds: int = 3,
    absent=lambda rank, number: set(),
    folder: str = "",
):
    exchange = build_exchange(Plan.parse(f"{plan}, meet(twostage)"), group, EngineChooser(group, world.dir / folder))
    buckets = exchange.open(lay_out(gradients(0, 0), 1 << 13, ["w0", "w1", "b"]))
    total: list[Result] = []
    for number in range(rounds):
        exchange.prepare()
        fill(buckets, gradients(group.rank, number), exchange.weight, absent(group.rank, number))
        for index in range(len(buckets)):
            exchange.start(index)
        for index in range(len(buckets)):
            exchange.finish(index)
        total.append({name: tensor.clone() for name, tensor in taken(buckets).items()})
        for bucket in buckets:
            bucket.reset()
    return exchange, total


@pytest.mark.parametrize("plans", [PLANS[:4], PLANS[4:]], ids=lambda plans: plans[0])
def test_the_same_bits_on_all_workers_and_engines(plans: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def body(world: WorkerWorld) -> Result:
        linked, found = linked_by_files(world.group, world.dir), {}
        for number, plan in enumerate(plans):
            for engine, group in (("memory", world.group), ("links", linked), ("gloo", world.group)):
                monkeypatch.setenv("SHOAL_ENGINE", "collective" if engine == "gloo" else "auto")
                (world.dir / f"{engine}{number}").mkdir(exist_ok=True)
                exchange, total = exchanged(world, group, plan, folder=f"{engine}{number}")
                assert exchange.observer.aggregation == "twostage"
                found[f"{number}.{engine}"] = torch.cat([t.view(-1) for result in total for t in result.values()])
                seen = exchange.observer
                found[f"{number}.{engine}.bytes"] = torch.tensor([seen.raw_bytes, seen.sent_bytes, seen.wire_bytes])
        return found

    results = run_world(3, body, seconds=110)
    for number, plan in enumerate(plans):
        first = results[0][f"{number}.memory"]
        assert first.isfinite().all(), plan
        for result in results:
            for engine in ("memory", "links", "gloo"):
                assert torch.equal(result[f"{number}.{engine}"], first), (plan, engine)
                raw, sent, wire = result[f"{number}.{engine}.bytes"].tolist()
                assert raw == 3 * 4 * (3500 + 297 + 60)
                assert 0 < sent < raw
                assert (wire > 0) == (engine != "memory")


@pytest.mark.parametrize("workers", [2, 3])
def test_sent_and_the_residuals_of_workers_and_owners_are_conserved(workers: int) -> None:
    """What came out, and what waits on all workers and owners, is what went in."""
    plans = ["onebit", "twobit(0.1)", "int8, feedback(on)"]

    def body(world: WorkerWorld) -> Result:
        found = {}
        for number, plan in enumerate(plans):
            exchange, total = exchanged(world, world.group, plan, rounds=5)
            found[f"{number}.sum"] = sum(result["0"] for result in total)
            state = exchange.state()
            found[f"{number}.rest"] = state["residual.w0"].clone()
            found[f"{number}.own"] = state.get("owner.w0", torch.zeros(0)).clone().view(-1)
        return found

    results = run_world(workers, body)
    due = sum(gradients(rank, number)[0] for rank in range(workers) for number in range(5)) / workers
    for number, plan in enumerate(plans):
        owned = torch.cat([result[f"{number}.own"] for result in results])  # shares side by side, in order of rank
        assert owned.numel() == due.numel()
        assert owned.any(), plan
        left = sum(result[f"{number}.rest"] for result in results) + owned.view_as(due)
        torch.testing.assert_close(results[0][f"{number}.sum"] + left, due, atol=1e-5, rtol=0)


def test_the_residual_of_an_owner_stays_small() -> None:
    """A sum of p thresholds is sent as one of p times the size; else it would wait for ever."""

    def body(world: WorkerWorld) -> Result:
        exchange, _ = exchanged(world, world.group, "twobit(0.05)", rounds=60)
        return {"own": exchange.state()["owner.w0"].clone()}

    for result in run_world(3, body):
        assert float(result["own"].abs().max()) <= 0.15 * 1.001
    assert ErrorFeedback(TwoBitCodec(0.5)).for_sum_of(4) == ErrorFeedback(TwoBitCodec(2.0))
    assert OneBitCodec().for_sum_of(4) == OneBitCodec()


def test_what_nobody_has_waits_at_the_worker_and_at_the_owner() -> None:
    """In the second round only worker 0 has w0, in the third nobody has."""

    def absent(rank: int, number: int) -> set[int]:
        return {0} if number == 2 or (number == 1 and rank > 0) else set()

    def body(world: WorkerWorld) -> Result:
        found = {}
        for rounds in (1, 2, 3):
            exchange, total = exchanged(world, world.group, "onebit", rounds, absent)
            state = exchange.state()
            found |= {f"rest{rounds}": state["residual.w0"].clone(), f"own{rounds}": state["owner.w0"].clone()}
            found[f"last{rounds}"] = total[-1]["0"].clone()
        return found

    results = run_world(3, body)
    for rank, found in enumerate(results):
        assert torch.equal(found["rest1"], found["rest2"]) == (rank > 0)
        assert not torch.equal(found["own1"], found["own2"])
        assert torch.equal(found["rest2"], found["rest3"])
        assert torch.equal(found["own2"], found["own3"])
        assert not found["last3"].any()


def test_what_is_remembered_goes_on_after_a_checkpoint() -> None:
    """The state of every worker, written down and put back, gives the bits of a run that never stopped."""

    def body(world: WorkerWorld) -> Result:
        _, whole = exchanged(world, world.group, "onebit", rounds=2)
        first, _ = exchanged(world, world.group, "onebit", rounds=1)
        kept = {name: tensor.clone() for name, tensor in first.state().items()}
        second = build_exchange(
            Plan.parse("onebit, meet(twostage)"), world.group, EngineChooser(world.group, world.dir)
        )
        buckets = second.open(lay_out(gradients(0, 0), 1 << 13, ["w0", "w1", "b"]))
        second.load(kept)
        second.prepare()
        fill(buckets, gradients(world.group.rank, 1), second.weight)
        for act in (second.start, second.finish):
            for index in range(len(buckets)):
                act(index)
        return {"whole": whole[-1]["0"], "resumed": taken(buckets)["0"]}

    for result in run_world(3, body):
        assert torch.equal(result["whole"], result["resumed"])


def waiting(state: Mapping[str, torch.Tensor]) -> torch.Tensor:
    found = folded(state)
    return torch.cat([found[f"residual.{name}"].view(-1) for name in ("w0", "w1")])


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("again", [True, False], ids=["dealt again", "as they are"])
def test_nothing_that_waits_is_lost_when_another_number_goes_on(workers: int, again: bool) -> None:
    """Dealt again over all; or as they are, where guests had shares too and put nothing into the checkpoint."""

    def save(world: WorkerWorld) -> Result:
        exchange, _ = exchanged(world, world.group, "onebit", rounds=2)
        return {name: tensor.clone() for name, tensor in exchange.state().items()}

    saved = run_world(3, save)
    assert any(name.startswith("owner.") for name in saved[1])
    mark = "0.pace."
    dealt = dealt_again([{mark + name: tensor for name, tensor in one.items()} for one in saved], workers)

    def load(world: WorkerWorld) -> Result:
        own = {name.removeprefix(mark): t for name, t in dealt.items()} if again else saved[min(world.group.rank, 2)]
        rule = PartialCodec(ErrorFeedback(OneBitCodec()))
        aggregator = TwoStageAggregator(rule, SharedMemoryPayloads(world.group), world.group.rank, world.group.size, 0)
        aggregator.open(
            [FlatLayout.of([("w0", (70, 50))]), FlatLayout.of([("w1", (33, 9)), ("b", (60,))])], ExchangeObserver()
        )
        aggregator.load(own)
        return {"waits": waiting(aggregator.state()), "given": waiting(own)}

    results = run_world(workers, load)
    for result in results:
        torch.testing.assert_close(result["waits"], result["given"], atol=1e-6, rtol=0)
    if again:
        total = sum(waiting(one) for one in saved)
        torch.testing.assert_close(sum(result["waits"] for result in results), total, atol=1e-5, rtol=0)


def test_a_damaged_payload_is_refused_or_decoded_never_more() -> None:
    class Nowhere(SharedMemoryPayloads):
        def __init__(self) -> None:
            pass

        def open(self, specs):
            return [torch.zeros(spec.area, dtype=torch.uint8) for spec in specs]

        def post(self, index, length):
            self.length = length

    aggregator = TwoStageAggregator(PartialCodec(ErrorFeedback(OneBitCodec())), Nowhere(), 1, 3, 0)
    aggregator.open([FlatLayout.of([("w", (40, 30)), ("b", (30,))])], ExchangeObserver())
    aggregator.start(0, torch.randn(1230), [True, True])
    made = aggregator._cuts[0]
    share, bound = made.shares[1], aggregator._areas[0].numel() // 3
    good = aggregator._areas[0][bound : 2 * bound].clone()
    rng = np.random.default_rng(1)
    refused = []
    for _ in range(2000):
        bad = good[: rng.integers(0, bound + 1)].clone() if rng.random() < 0.3 else good.clone()
        for _ in range(rng.integers(1, 4)):
            if bad.numel():
                bad[rng.integers(0, bad.numel())] = int(rng.integers(0, 256))
        try:
            add_share(
                aggregator.codec,
                2,
                bad,
                made,
                share,
                (torch.zeros(share.layout.numel), torch.zeros(share.plain_layout.numel)),
                fresh=False,
            )
        except PayloadError as error:
            refused.append(str(error))
    assert len(refused) > 200
    assert all(text.startswith("worker 2: ") for text in refused)


def test_sparsifiers_are_refused() -> None:
    with pytest.raises(UsageError, match="no dense payloads"):
        TwoStageAggregator(
            PartialCodec(ErrorFeedback(TopKCodec(0.1))), SharedMemoryPayloads.__new__(SharedMemoryPayloads), 0, 2, 0
        )
