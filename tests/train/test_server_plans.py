"""Training through parameter servers: equal to one process with the whole batch."""

from collections.abc import Callable

import pytest
import torch
from by_servers import run_served
from loops import adamw, assert_equal, batches, data, loader, parameters, sgd, train
from models import make
from test_works_with import Paths, Words
from torch import nn
from torch.optim import SGD, Optimizer

from shoal.core.errors import UsageError
from shoal.testing.world import Result, WorkerWorld, WorldError, run_world
from shoal.train.run import Run

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
        WorldError, match=r"needs 1 server processes and there are 0: servers are\s+started by shoal run"
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
        ("server, int8", "servers add up values as they are"),
        ("server, order(needed)", "servers answer in any order"),
        ("server(shards=0)", "shards"),
        ("server, allreduce", "keep one"),
    ],
)
def test_what_does_not_fit_is_refused(plan: str, why: str) -> None:
    from shoal.plan.plan import Plan
    from shoal.plan.rules import check

    with pytest.raises(UsageError, match=why):
        check(Plan.parse(plan), 2)
