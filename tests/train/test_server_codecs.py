"""Codecs under parameter servers, on two workers: what travels, that it trains, and what the record says of it."""

from collections.abc import Callable

import pytest
import torch
from by_servers import run_served
from loops import assert_equal, batches, data, loader, loss_of, parameters, sgd, train
from models import make
from torch import nn
from torch.optim import SGD

from shoal.core.events import ServerCounted
from shoal.testing.world import Result, WorkerWorld
from shoal.train.run import Run
from shoal.watch.record import RunRecord

STEPS = 12


def told(run: Run) -> ServerCounted:
    """What the record of a run that has ended says of its servers."""
    return [each for each in RunRecord.open(run.dir).events(run.rank) if isinstance(each, ServerCounted)][-1]


def wide() -> nn.Module:
    """Large enough that heads of payloads do not count."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 3))


@pytest.mark.parametrize(
    ("plan", "up", "down"),
    [
        ("server(shards=2), async, topk(0.02)", 5, 3),
        ("server, stale(2), topk(0.05), int8", 5, 2),
        ("server, stale(1), significant(0.05)", 5, 5),
        ("server, async(rule=adagrad, rate=0.01), int8", 2.5, 0.99),
        ("server, stale(0), fp16", 1.9, 0.99),
    ],
)
def test_pushes_are_shorter_and_the_loss_falls(plan: str, up: float, down: float) -> None:
    """`up`, `down`: how many times fewer bytes at the least; beside them the values that all begin rounds with."""
    dataset = data(8 * STEPS)

    def body(world: WorkerWorld, start: Callable[[], Run]) -> Result:
        run, model = start(), wide()
        before = loss_of(model, *dataset.tensors).detach()
        model, optimizer, steps = run.join(model, SGD(model.parameters(), lr=0.05), loader(2, dataset))
        train(model, optimizer, (steps for _ in run.epochs(2)))
        after = loss_of(model, *dataset.tensors).detach()
        run.close()
        found = told(run)
        whole = 4 * sum(p.numel() for p in model.parameters())
        begun = whole * 3  # of the shard's first values, and of two meetings
        assert found.plain_up == found.pushes * whole
        assert found.plain_down == found.pulls * whole
        assert (found.up - whole) * up <= found.plain_up
        assert (found.down - begun) * down <= found.plain_down
        return {**parameters(model), "before": before, "after": after}

    first, second = run_served(2, plan, body)
    assert first["after"] < first["before"]
    assert all(torch.equal(first[name], second[name]) for name in first), "replicas differ after a meeting"


def test_a_codec_that_loses_nothing_equals_one_process() -> None:
    """With no staleness and plain SGD."""

    def body(world: WorkerWorld, start: Callable[[], Run]) -> Result:
        run, own = start(), make("mlp")
        own, optimizer, steps = run.join(own, SGD(own.parameters(), lr=0.1), loader(2, data(33)))
        train(own, optimizer, (steps for _ in run.epochs(1)))
        return parameters(own)

    model = make("mlp")
    train(model, SGD(model.parameters(), lr=0.1), [batches(data(33), 0)])
    for result in run_served(2, "server(shards=3), stale(0), nonzero", body):
        assert_equal(result, model)


def test_a_single_worker_needs_no_codec() -> None:
    model = make("mlp")
    train(model, sgd(model), [batches(data(33), 0)])

    def body(world: WorkerWorld, start: Callable[[], Run]) -> Result:
        run, own = start(), make("mlp")
        own, optimizer, steps = run.join(own, sgd(own), loader(1, data(33)))
        train(own, optimizer, (steps for _ in run.epochs(1)))
        return parameters(own)

    (result,) = run_served(1, "server, async, topk(0.01)", body)
    assert_equal(result, model)
