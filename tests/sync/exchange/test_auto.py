"""wire(auto): it measures, all workers choose alike, the switch loses nothing, and inside one host it costs nothing."""

import pytest
import torch
from by_links import linked_by_files
from torch.optim import SGD, AdamW

from shoal.groups.base import WorkerGroup
from shoal.plan.plan import Plan
from shoal.sync.exchange import auto
from shoal.sync.exchange.allreduce import AllReduceExchange
from shoal.sync.price import CodecChoice
from shoal.testing import WorkerWorld, run_world
from shoal.testing.exchange import fill, taken
from shoal.testing.world import Result
from shoal.train.build import EngineChooser, build_exchange
from shoal.train.codec_candidates import codecs_to_try
from shoal.wire import kernels
from shoal.wire.bucket import lay_out

kernels.warm()  # once here instead of once in every worker
ROUNDS = auto.SKIPPED + auto.MEASURED + 4
PARAMETERS = [torch.nn.Parameter(torch.zeros(1))]


def gradients(rank: int, number: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * rank + number)
    return [torch.randn(60, 50, generator=generator), torch.randn(60, generator=generator)]


def exchanged(world: WorkerWorld, group: WorkerGroup, rounds: int = ROUNDS):  # type: ignore[no-untyped-def]
    optimizers = [SGD(PARAMETERS, lr=0.1)]
    exchange = build_exchange(Plan.parse("wire(auto)"), group, EngineChooser(group, world.dir), 0, optimizers)
    buckets = exchange.open(lay_out(gradients(0, 0), 1 << 13, ["w", "b"]))
    results, sent = [], []
    for number in range(rounds):
        exchange.prepare()
        fill(buckets, gradients(group.rank, number), exchange.weight)
        before = exchange.observer.sent_bytes
        for index in range(len(buckets)):
            exchange.start(index)
            exchange.progress()
        for index in range(len(buckets)):
            exchange.finish(index)
        sent.append(exchange.observer.sent_bytes - before)
        results.append(torch.cat([t.view(-1) for t in taken(buckets).values()]))
        for bucket in buckets:
            bucket.reset()
    return exchange, torch.stack(results), sent


@pytest.mark.parametrize("engine", ["links", "gloo"])
@pytest.mark.parametrize("codec", ["", "fp16", "onebit(2048)", "topk(0.01)"])
def test_all_switch_at_the_same_step_and_stay_one_model(
    engine: str, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is chosen; the choice itself is another file's."""
    seen = []

    def chosen(measured, prices, network):  # type: ignore[no-untyped-def]
        seen.append((measured, prices, network))
        return CodecChoice(codec, "the test says so", {"": 1.0})

    monkeypatch.setattr(auto, "choose_codec", chosen)
    monkeypatch.setenv("SHOAL_ENGINE", "collective" if engine == "gloo" else "auto")

    def body(world: WorkerWorld) -> Result:
        group = linked_by_files(world.group, world.dir) if engine == "links" else world.group
        exchange, results, sent = exchanged(world, group)
        ((measured, prices, network),) = seen
        assert [price.codec for price in prices] == ["fp16", "int8(1024)", "onebit(2048)", "topk(0.01)"]
        assert all(min(price.encode, price.decode, price.wire, price.hops) > 0 for price in prices)
        assert measured.step >= measured.span >= 0
        assert measured.price.wire > 0
        assert (network.rtt is not None) == (engine == "links")
        (news,) = exchange.observer.take_decisions()
        assert (news.codec, news.reason) == (codec, "the test says so")
        assert exchange.observer.codec == codec
        rest = sum((t for n, t in exchange.state().items() if n == "residual.w"), torch.zeros(60, 50))
        figures = torch.tensor([measured.step, measured.span, *(price.encode for price in prices)], dtype=torch.float64)
        return {"results": results, "sent": torch.tensor(sent), "rest": rest.clone(), "figures": figures}

    one, two = run_world(2, body)
    assert torch.equal(one["results"], two["results"])
    assert torch.equal(one["figures"], two["figures"])  # the averages are the same bits
    switch = auto.SKIPPED + auto.MEASURED + 1
    for number in range(switch):
        mean = torch.cat([t.view(-1) for t in (gradients(0, number)[i] + gradients(1, number)[i] for i in (0, 1))]) / 2
        torch.testing.assert_close(one["results"][number], mean, atol=1e-6, rtol=0)
    assert len(set(one["sent"][:switch].tolist())) == 1
    assert (one["sent"][switch:] < one["sent"][0]).all() == bool(codec)
    due = sum(gradients(rank, number)[0] for rank in (0, 1) for number in range(switch, ROUNDS)) / 2
    applied = one["results"][switch:, :3000].sum(0).view(60, 50) + one["rest"] + two["rest"]
    torch.testing.assert_close(applied, due, atol=1e-2 if codec == "fp16" else 1e-5, rtol=0)


def test_a_fast_link_is_left_as_it_is() -> None:
    """Sockets of this host carry twelve kilobytes faster than anybody encodes them, or too few to tell."""

    def body(world: WorkerWorld) -> Result:
        exchange, _, _ = exchanged(world, linked_by_files(world.group, world.dir))
        (news,) = exchange.observer.take_decisions()
        return {"none": torch.tensor(news.codec == ""), "steps": torch.tensor(len(news.steps))}

    one, two = run_world(2, body)
    assert bool(one["none"]) == bool(two["none"])
    assert torch.equal(one["steps"], two["steps"])


def test_inside_one_host_nothing_is_chosen_or_wrapped() -> None:
    def body(world: WorkerWorld) -> Result:
        exchange, _, _ = exchanged(world, world.group, 2)
        assert type(exchange) is AllReduceExchange
        assert [(news.codec, news.reason) for news in exchange.observer.take_decisions()] == [
            ("", "inside one host nothing crosses a socket")
        ]
        assert exchange.retryable
        return {}

    run_world(2, body)


def test_only_sgd_gets_codecs_that_rest_on_feedback() -> None:
    assert list(codecs_to_try([SGD(PARAMETERS, lr=0.1)], 4)) == ["fp16", "int8(1024)", "onebit(2048)", "topk(0.01)"]
    assert list(codecs_to_try([SGD(PARAMETERS, lr=0.1), AdamW(PARAMETERS)], 4)) == ["fp16", "int8(1024)"]
    assert list(codecs_to_try([], 4)) == ["fp16", "int8(1024)"]
