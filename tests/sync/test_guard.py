"""The guard: what it measures is right, all workers tighten alike, and a codec that keeps up is left alone."""

import pytest
import torch

from shoal.plan.plan import Plan
from shoal.sync.guard import ConvergenceGuard, GuardFinding
from shoal.sync.observer import GuardTightened
from shoal.testing import WorkerWorld, run_world
from shoal.testing.exchange import fill, taken
from shoal.testing.world import Result
from shoal.train.build import EngineChooser, build_exchange
from shoal.wire import kernels
from shoal.wire.bucket import lay_out
from shoal.wire.redeal import merge, split

kernels.warm()  # once here instead of once in every worker


def gradients(rank: int, number: int) -> list[torch.Tensor]:
    """Noise round a common direction, some of it far larger than the rest."""
    generator = torch.Generator().manual_seed(7)
    common = torch.randn(60, 50, generator=generator) ** 3
    generator.manual_seed(100 * rank + number)
    return [common + 0.3 * torch.randn(60, 50, generator=generator), torch.randn(50, generator=generator)]


def exchanged(world: WorkerWorld, plan: str, rounds: int):  # type: ignore[no-untyped-def]
    exchange = build_exchange(Plan.parse(plan), world.group, EngineChooser(world.group, world.dir))
    buckets = exchange.open(lay_out(gradients(0, 0), 1 << 13, ["w", "b"]))
    applied = [torch.zeros(60, 50), torch.zeros(50)]
    sent = []
    for number in range(rounds):
        exchange.prepare()
        fill(buckets, gradients(world.group.rank, number), exchange.weight)
        before = exchange.observer.sent_bytes
        for act in (exchange.start, exchange.finish):
            for index in range(len(buckets)):
                act(index)
        sent.append(exchange.observer.sent_bytes - before)
        for name, value in taken(buckets).items():
            applied[int(name)] += value
        for bucket in buckets:
            bucket.reset()
    return exchange, applied, sent


def test_the_cosine_is_that_of_sums_over_the_window() -> None:
    def body(world: WorkerWorld) -> Result:
        exchange, applied, _ = exchanged(world, "topk(0.1), guard(0.1, every=4)", 4)
        (news,) = exchange.observer.take_decisions()
        return {"cosine": torch.tensor(news.cosine), "0": applied[0], "1": applied[1]}

    results = run_world(2, body)
    true = [sum(gradients(rank, number)[i] for rank in range(2) for number in range(4)) / 2 for i in (0, 1)]
    one = torch.cat([results[0]["0"].view(-1), results[0]["1"]])
    expected = torch.nn.functional.cosine_similarity(one, torch.cat([true[0].view(-1), true[1]]), 0)
    for result in results:
        assert float(result["cosine"]) == pytest.approx(float(expected), abs=1e-4)
        assert 0.5 < float(result["cosine"]) < 1.0


@pytest.mark.parametrize(
    "plan", ["topk(0.01)", "randomk(0.01)", "dgc(ratio=0.01, momentum=0.5)", "topk(0.01), warmup(2)"]
)
@pytest.mark.parametrize("engine", ["memory", "collective"])
def test_a_sparsifier_outside_its_budget_sends_twice_as_much(
    plan: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_ENGINE", engine)

    def body(world: WorkerWorld) -> Result:
        exchange, applied, sent = exchanged(world, f"{plan}, guard(0.999, every=3), by_size(0)", 30)
        found = exchange.observer.take_decisions()
        assert [decision.action for decision in found][:2] == ["tightened"] * 2
        ratios = [decision.ratio for decision in found]
        assert ratios[:2] == [0.02, 0.04]
        assert ratios == sorted(ratios)
        assert exchange.state()["guard.ratio"].item() == ratios[-1]
        return {"ratios": torch.tensor(ratios), "sent": torch.tensor(sent), "applied": applied[0]}

    one, two = run_world(2, body)
    for name in ("ratios", "applied"):
        assert torch.equal(one[name], two[name])
    assert one["sent"][-1] > 4 * one["sent"][2]
    assert float(one["ratios"].max()) <= 1.0


def test_a_codec_that_keeps_up_is_left_alone() -> None:
    def body(world: WorkerWorld) -> Result:
        exchange, _, _ = exchanged(world, "int8, guard(0.9, every=2)", 4)
        assert [(news.action, news.ratio) for news in exchange.observer.take_decisions()] == [("kept", None)] * 2
        assert exchange.retryable
        return {}

    run_world(2, body)


def test_of_a_codec_that_cannot_send_more_it_is_only_said() -> None:
    guard = ConvergenceGuard(0.9, 5, None, None)  # type: ignore[arg-type]
    assert guard.judge(GuardFinding(0.95, 5)) == GuardTightened(0.95, 0.9, 5, "kept")
    assert guard.judge(GuardFinding(0.5, 5)) == GuardTightened(0.5, 0.9, 5, "outside")


def test_tightening_ends_at_all_elements_and_goes_on_after_a_checkpoint() -> None:
    guard = ConvergenceGuard(0.9, 5, None, 0.3)  # type: ignore[arg-type]
    assert [guard.judge(GuardFinding(0.5, 5)).ratio for _ in range(2)] == [0.6, 1.0]
    assert guard.judge(GuardFinding(0.5, 5)).action == "outside"
    other = ConvergenceGuard(0.9, 5, None, 0.3)  # type: ignore[arg-type]
    other.state()["guard.ratio"].copy_(guard.state()["guard.ratio"])
    assert other.judge(GuardFinding(0.95, 5)).ratio == 1.0


def test_another_number_of_workers_goes_on_with_the_same_ratio() -> None:
    guards = [ConvergenceGuard(0.9, 5, None, 0.3) for _ in range(2)]  # type: ignore[arg-type]
    for share in split(merge([guard.state() for guard in guards]), 3):
        assert share["guard.ratio"].item() == 0.3
