"""Coded exchanges: the null codec passes the exchange's own case on every engine; others keep what they promise."""

import pytest
import torch
from in_short import in_short

from shoal.plan.plan import Plan
from shoal.sync.aggregate.gather import GatherAggregator
from shoal.sync.exchange.allreduce import AllReduceExchange
from shoal.sync.exchange.compressed import CompressedExchange
from shoal.testing import ExchangeCase, WorkerWorld, run_world
from shoal.testing.exchange import SHAPES, fill, taken, tensors
from shoal.train.build import EngineChooser, build_exchange
from shoal.wire import kernels
from shoal.wire.bucket import lay_out
from shoal.wire.codecs.raw import RawCodec
from shoal.wire.codecs.topk import TopKCodec
from shoal.wire.wrappers.parts import PartialCodec

kernels.warm()  # once here instead of once in every worker
NAMES = [f"layer{i}" for i in range(len(SHAPES))]


class CodedCase(ExchangeCase):
    codec = RawCodec()

    def make(self, group, directory):
        engines = EngineChooser(group, directory)
        inner = AllReduceExchange(group, engines.of)
        return CompressedExchange(inner, lambda _: GatherAggregator(self.codec, engines.payloads(), group.rank, 0))

    def open(self, world, dtype=torch.float32, capacity=1 << 12):
        exchange = self.make(world.group, world.dir)
        return exchange, exchange.open(lay_out(tensors(0, 0, dtype), capacity, NAMES))

    def test_mean_float64(self):
        self.check_mean(self.sizes[0], torch.float64, 1e-6)  # codecs take float32


class TestCodedInMemory(CodedCase):
    codec = PartialCodec(TopKCodec(1.0), least=300)


@in_short
class TestCodedByGloo(CodedCase):
    sizes = (2,)

    @pytest.fixture(autouse=True)
    def _engine(self, monkeypatch):
        monkeypatch.setenv("SHOAL_ENGINE", "collective")


class TestCodedOfVaryingLengthByGloo(TestCodedByGloo):
    sizes = (2, 3)
    codec = PartialCodec(TopKCodec(1.0), least=300)


def exchanged(world: WorkerWorld, plan: str, rounds: int, values, dtype=torch.float32):
    """The result of some rounds of one exchange, with all that was sent."""
    exchange = build_exchange(Plan.parse(plan), world.group, EngineChooser(world.group, world.dir))
    buckets = exchange.open(lay_out(values(0, 0), 1 << 14, [f"w{i}" for i in range(len(values(0, 0)))]))
    total = []
    for number in range(rounds):
        exchange.prepare()
        fill(buckets, values(world.group.rank, number), exchange.weight)
        for index in range(len(buckets)):
            exchange.start(index)
        for index in range(len(buckets)):
            exchange.finish(index)
        total.append({name: tensor.clone().float() for name, tensor in taken(buckets).items()})
        for bucket in buckets:
            bucket.reset()
    return exchange, total


def gradients(rank: int, number: int):
    generator = torch.Generator().manual_seed(100 * rank + number)
    return [torch.randn(60, 50, generator=generator), torch.randn(60, generator=generator)]


PLANS = ["fp16", "bf16", "int8", "fixed", "onebit", "twobit(0.1)", "ternary", "qsgd", "topk(0.1)", "topk(0.1), int8",
         "randomk(0.2)", "threshold(0.1)", "dgc(0.1)", "esgd", "lowrank(2)",
         "dgc(ratio=0.01, warmup=3), fp16"]  # fmt: skip


@pytest.mark.parametrize("engine", ["memory", "collective"])
def test_all_codecs_give_all_workers_the_same_bits(engine, monkeypatch):
    monkeypatch.setenv("SHOAL_ENGINE", engine)

    def body(world: WorkerWorld):
        found = {}
        for number, plan in enumerate(PLANS):
            world.dir.joinpath(str(number)).mkdir(exist_ok=True)
            here = WorkerWorld(world.group, world.dir / str(number))
            exchange, total = exchanged(here, plan, 3, gradients)
            found[f"{number}"] = torch.cat([t.view(-1) for result in total for t in result.values()])
            seen = exchange.observer
            found[f"bytes{number}"] = torch.tensor([seen.raw_bytes, seen.sent_bytes, seen.wire_bytes])
        return found

    one, two = run_world(2, body)
    for number, plan in enumerate(PLANS):
        assert torch.equal(one[str(number)], two[str(number)]), plan
        assert one[str(number)].isfinite().all(), plan
        raw, sent, wire = one[f"bytes{number}"].tolist()
        assert raw == 3 * 4 * 3060
        assert 0 < sent < 0.56 * raw, plan
        assert (wire > 0) == (engine == "collective")


def test_sent_and_residuals_are_conserved_over_workers():
    """What came out, and what waits on all workers, is what went in."""

    def body(world: WorkerWorld):
        found = {}
        for number, plan in enumerate(["onebit", "topk(0.05)", "twobit(0.2)", "lowrank(2)"]):
            exchange, total = exchanged(world, plan, 4, gradients)
            found[f"sum{number}"] = sum(result["0"] for result in total)
            found[f"rest{number}"] = exchange.aggregator.state()["residual.w0"].clone()
        return found

    results = run_world(2, body)
    due = sum(gradients(rank, number)[0] for rank in range(2) for number in range(4)) / 2
    for number in range(4):
        rests = sum(result[f"rest{number}"] for result in results)
        torch.testing.assert_close(results[0][f"sum{number}"] + rests, due, atol=1e-5, rtol=0)


def test_what_one_worker_lacks_waits_there():
    """Worker 1 has a matrix in the first round only: its residual of it stays until it has it again."""

    def body(world: WorkerWorld):
        exchange = build_exchange(Plan.parse("topk(0.1)"), world.group, EngineChooser(world.group, world.dir))
        buckets = exchange.open(lay_out(gradients(0, 0), 1 << 20, ["w", "b"]))
        rests = []
        for number in range(2):
            exchange.prepare()
            absent = {0, 1} if (world.group.rank, number) == (1, 1) else set()
            fill(buckets, gradients(world.group.rank, number), exchange.weight, absent)
            exchange.start(0)
            exchange.finish(0)
            rests.append(exchange.aggregator.state()["residual.w"].clone())
            had = [buckets[0].marks.tolist()]
            buckets[0].reset()
        return {"before": rests[0], "after": rests[1], "had": torch.tensor(had)}

    one, two = run_world(2, body)
    assert torch.equal(two["before"], two["after"])
    assert not torch.equal(one["before"], one["after"])
    assert one["had"].tolist() == two["had"].tolist() == [[1.0, 1.0]]


def test_lowrank_of_low_rank_is_exact():
    def values(rank: int, number: int):
        generator = torch.Generator().manual_seed(3)
        return [(rank + 1) * torch.randn(40, 1, generator=generator) @ torch.randn(1, 30, generator=generator)]

    def body(world: WorkerWorld):
        return {"last": exchanged(world, "lowrank(1)", 3, values)[1][-1]["0"]}

    for result in run_world(3, body):
        mean = sum(values(rank, 0)[0] for rank in range(3)) / 3
        torch.testing.assert_close(result["last"], mean, atol=1e-4, rtol=1e-4)


def test_fp16_follows_the_size_of_gradients():
    """From 1e-6 to 1e5, ten times more in each round: nothing overflows, nothing vanishes."""

    def values(rank: int, number: int):
        return [torch.full((8, 8), 10.0 ** (number - 6))]

    def body(world: WorkerWorld):
        return {f"{n}": r["0"] for n, r in enumerate(exchanged(world, "fp16", 12, values)[1])}

    for result in run_world(2, body):
        for number in range(12):
            torch.testing.assert_close(result[str(number)], values(0, number)[0], rtol=2e-3, atol=0)
