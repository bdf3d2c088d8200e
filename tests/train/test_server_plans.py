"""Training through parameter servers: equal to one process with the whole batch."""

import time
from collections.abc import Callable

import pytest
import torch
from by_servers import run_served
from loops import adamw, assert_equal, batches, data, loader, loss_of, parameters, sgd, train
from models import make
from test_works_with import Paths, Words
from torch import nn
from torch.optim import SGD, Optimizer

from shoal.core.errors import UsageError
from shoal.core.events import ServerCounted
from shoal.data.deal import deal
from shoal.testing.world import Result, WorkerWorld, WorldError, run_world
from shoal.train.run import Run
from shoal.watch.record import RunRecord

EPOCHS = 2


def words_sgd(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.1)


def trained(plan: str, size: int, kind: object, optimizer_of: Callable[[nn.Module], Optimizer]) -> list[Result]:
    def body(world: WorkerWorld, start: Callable[[], Run]) -> Result:
        run, model = start(), make(kind)
        model, optimizer, steps = run.join(model, optimizer_of(model), loader(size, data(33)))
        train(model, optimizer, (steps for _ in run.epochs(EPOCHS)))
        return parameters(model)

    return run_served(size, plan, body)


@pytest.mark.parametrize(
    ("plan", "size", "kind", "optimizer_of"),
    [
        ("server, every(1)", 2, "mlp", sgd),
        ("server(shards=2), every(1)", 2, "lstm", adamw),
        ("server(shards=3), every(1)", 4, "mlp", adamw),
        ("server", 2, Paths, adamw),
        ("server", 2, Words, words_sgd),
    ],
    ids=["momentum", "two shards, adamw", "one has the last sample", "unused parameters", "sparse"],
)
def test_every_step_equals_one_process(plan: str, size: int, kind, optimizer_of) -> None:  # type: ignore[no-untyped-def]
    model = make(kind)
    train(model, optimizer_of(model), [batches(data(33), epoch) for epoch in range(EPOCHS)])
    results = trained(plan, size, kind, optimizer_of)
    for result in results:
        assert_equal(result, model)
        assert all(torch.equal(result[name], results[0][name]) for name in result)


def test_local_steps_meet_at_the_servers() -> None:
    """`local(1, average)` with plain SGD equals synchronous training, also through servers."""
    model = make("mlp")
    train(model, words_sgd(model), [batches(data(33), epoch) for epoch in range(EPOCHS)])
    for result in trained("server(shards=2), local(1, average)", 2, "mlp", words_sgd):
        assert_equal(result, model)


def test_workers_without_servers_say_what_is_missing() -> None:
    with pytest.raises(
        WorldError, match=r"needs 1 server processes, and nobody has started any: servers\s+are started by\s+shoal run"
    ):
        run_world(2, lambda world: world.start("server") and None)


def test_a_single_worker_needs_no_server() -> None:
    model = make("mlp")
    train(model, sgd(model), [batches(data(33), epoch) for epoch in range(EPOCHS)])
    (result,) = trained("server", 1, "mlp", sgd)
    assert_equal(result, model)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ("server, int8", r"add up gradients as they are; remove it, or write stale\(0\)"),
        ("server, async, lowrank(2)", "its factors are sums over all workers"),
        ("server, async, topk(0.01), meet(gather)", "a server decodes pushes one by one"),
        ("server, async, topk(0.01), momentum(0.9)", "its momentum is for gradients"),
        ("server, order(needed)", "servers answer in any order"),
        ("server(shards=0)", "shards"),
        ("server(replicas=3)", "replicas must be a whole number from 1 to 2"),
        ("server, allreduce", "keep one"),
        ("async", "is for parameter servers; write server, async"),
        ("server, async, dgc(ratio=0.01, momentum=0.9, clip=0.0, warmup=0)", "its momentum correction assumes"),
        ("significant(0.05)", "which only pushes to servers know"),
        ("server, async(rule=sgd, rate=0.1), significant(0.05)", "gradients travel, whose size says nothing"),
        ("server, async(rule=adagrad)", "they need a rate"),
        ("server, async(speculate=1, prefetch=true)", "both say when values are pulled"),
        ("allreduce, stale(1, prefetch=true)", "only the bound has a meaning"),
        ("server, stale(-1)", "bound"),
    ],
)
def test_what_does_not_fit_is_refused(plan: str, why: str) -> None:
    from shoal.plan.plan import Plan
    from shoal.plan.rules import check

    with pytest.raises(UsageError, match=why):
        check(Plan.parse(plan), 2)


@pytest.mark.parametrize("plan", ["server, stale(0)", "server(shards=2), stale(0, prefetch=true, round=3)"])
def test_no_staleness_and_sgd_equal_one_process(plan: str) -> None:
    """Changes by each worker's share of the samples add up to the step of the whole batch."""
    model = make("mlp")
    train(model, words_sgd(model), [batches(data(33), epoch) for epoch in range(EPOCHS)])
    results = trained(plan, 2, "mlp", words_sgd)
    for result in results:
        assert_equal(result, model)
        assert all(torch.equal(result[name], results[0][name]) for name in result)


def test_sgd_at_the_server_equals_sgd_of_one_worker_after_the_other() -> None:
    """With a round in every step all workers' gradients are of the same values: the server makes both their steps."""
    model = make("mlp")
    for epoch in range(EPOCHS):
        for x, y in batches(data(32), epoch):
            gradients = [torch.autograd.grad(loss_of(model, *part), list(model.parameters())) for part in halves(x, y)]
            with torch.no_grad():
                for parameter, *own in zip(model.parameters(), *gradients, strict=True):
                    parameter -= 0.1 * (own[0] + own[1])

    def body(world: WorkerWorld, start: Callable[[], Run]) -> Result:
        run, own = start(), make("mlp")
        own, optimizer, steps = run.join(own, words_sgd(own), loader(2, data(32)))
        train(own, optimizer, (steps for _ in run.epochs(EPOCHS)))
        return parameters(own)

    # workers push in any order, and both have pulled before: by the round of one step
    for result in run_served(2, "server, async(rule=sgd, rate=0.1, round=1)", body):
        assert_equal(result, model)


def halves(x: torch.Tensor, y: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(deal(x, 2), deal(y, 2), strict=True))


@pytest.mark.parametrize(
    ("plan", "bound"), [("stale(2, round=12)", 2), ("stale(1, rates=adaptive)", 1), ("async", None)]
)
def test_a_fast_worker_is_never_further_ahead_than_the_bound(plan: str, bound: int | None) -> None:
    """Worker 1 lets the other go ahead as far as it may, and further than 3 if there is no bound, before each step; the
    record says how stale the values of worker 0 were, and whom it waited for."""
    ahead = 5 if bound is None else bound + 1

    def body(world: WorkerWorld, start: Callable[[], Run]) -> Result:
        run, model = start(), make("mlp")
        model, optimizer, steps = run.join(model, words_sgd(model), loader(2, data(96)))
        made, begun = iter(range(12)), world.dir / "steps of worker 0"

        def pause() -> None:
            step = next(made)
            if run.rank == 0:
                (world.dir / "new").write_text(str(step + 1))
                (world.dir / "new").replace(begun)
                return
            limit = time.monotonic() + 60.0
            while not begun.exists() or int(begun.read_text()) < min(12, step + ahead):
                assert time.monotonic() < limit
                time.sleep(0.001)
            time.sleep(0.03)  # it may ask for values meanwhile, which it has to wait for

        train(model, optimizer, (steps for _ in run.epochs(1)), between=pause)
        run.close()
        (told,) = [each for each in RunRecord.open(run.dir).events(run.rank) if isinstance(each, ServerCounted)][-1:]
        stale = torch.tensor(sorted(int(behind) for behind, steps in told.staleness.items() if steps))
        assert told.pushes == sum(told.staleness.values()) == 12
        assert told.up >= told.pushes * 4 * sum(p.numel() for p in model.parameters())
        waited = told.waited.get("w1.0", 0) if run.rank == 0 else 0
        return {**parameters(model), "stale": stale, "pulls": torch.tensor(told.pulls), "waited": torch.tensor(waited)}

    first, second = run_served(2, f"server, {plan}", body)
    assert all(torch.equal(first[name], second[name]) for name in parameters(make("mlp"))), "replicas differ at the end"
    if bound is None:
        assert first["stale"].max() > 3, "nobody waits"
        assert first["waited"] == 0
    else:
        assert max(first["stale"].max(), second["stale"].max()) <= bound
        assert first["waited"] > 0
    if plan.startswith("stale(2"):
        assert second["pulls"] <= 12 / 2, "the slow one pulls only when its values are too stale"


def test_statistics_of_batch_norm_become_their_mean_at_a_meeting() -> None:
    def body(world: WorkerWorld, start: Callable[[], Run]) -> Result:
        run = start()
        torch.manual_seed(0)
        model: nn.Module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
        model, optimizer, steps = run.join(model, words_sgd(model), loader(2, data(32)))
        train(model, optimizer, (steps for _ in run.epochs(1)))
        return {"mean": model[1].running_mean.clone()}

    first, second = run_served(2, "server, async", body)
    assert torch.equal(first["mean"], second["mean"])
    assert bool(first["mean"].any())
