"""`server(levels=2)`: the workers of a host agree in every step, and to the servers they are one (row 180)."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from by_servers import run_served
from loops import adamw, assert_equal, batches, data, loader, parameters, train
from models import make
from torch import nn
from torch.optim import SGD

from shoal.core.clock import Deadline
from shoal.core.errors import UsageError
from shoal.core.events import ServerCounted
from shoal.plan.plan import Plan
from shoal.plan.rules import check
from shoal.sync.server.connection import ServerConnection
from shoal.testing.world import Result, WorkerWorld
from shoal.train.run import Run
from shoal.watch.record import RunRecord
from shoal.wire.bucket import CAPACITY

EPOCHS = 2


def plain_sgd(model: nn.Module) -> SGD:
    return SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("pace", ["stale(0, round=4)", "stale(3, round=4)", "async(round=4)"])
def test_on_one_host_it_is_synchronous_training(pace: str) -> None:
    """Under any pace: nobody else is there to be stale to. The last step of a pass has samples for one worker alone."""
    model = make("mlp")
    train(model, plain_sgd(model), [batches(data(33), epoch) for epoch in range(EPOCHS)])

    def body(world: WorkerWorld, start: Callable[[], Run]) -> Result:
        run, own = start(), make("mlp")
        own, optimizer, steps = run.join(own, plain_sgd(own), loader(2, data(33)))
        train(own, optimizer, (steps for _ in run.epochs(EPOCHS)))
        return parameters(own)

    results = run_served(2, f"server(shards=2, levels=2), {pace}", body)
    for result in results:
        assert_equal(result, model)
        assert all(torch.equal(result[name], results[0][name]) for name in result)


def test_bytes_of_a_host_fall_by_the_number_of_its_workers() -> None:
    """Of pushes and pulls; only what opens a shard and what a round's end says is not counted here."""

    def body(world: WorkerWorld, start: Callable[[], Run]) -> Result:
        run, own = start(), make("mlp")
        own, optimizer, steps = run.join(own, adamw(own), loader(3, data(48)))
        train(own, optimizer, (steps for _ in run.epochs(EPOCHS)))
        run.close()
        (told,) = [each for each in RunRecord.open(run.dir).events(run.rank) if isinstance(each, ServerCounted)][-1:]
        return {"bytes": torch.tensor([told.plain_up, told.plain_down]), "pushes": torch.tensor(told.pushes)}

    def count(plan: str) -> tuple[torch.Tensor, int]:
        found = run_served(3, plan, body)
        return sum((each["bytes"] for each in found), torch.zeros(2, dtype=torch.int64)), sum(
            int(each["pushes"]) for each in found
        )

    (one_bytes, one), (two_bytes, two) = count("server, async(round=4)"), count("server(levels=2), async(round=4)")
    assert one == 3 * two
    assert torch.equal(one_bytes, 3 * two_bytes)


class LingeringBackward(torch.autograd.Function):
    """Lets what is before it wait in the backward pass until `has_come`."""

    has_come: Callable[[], bool]

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        deadline = Deadline.after(30.0)
        while not LingeringBackward.has_come():
            assert not deadline.expired, "no sum comes while the backward pass runs"
            time.sleep(0.001)
        return grad


class LargeLayers(nn.Module):
    """The second is a bucket of its own, and its gradient is there before that of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 1024), nn.Linear(1024, 1100, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(LingeringBackward.apply(self.first(x)))
        return out


def test_sums_of_late_layers_come_from_the_servers_while_early_ones_compute_backward() -> None:
    """MXNet's dependency engine pushes a gradient when it is there. Without overlap this would wait for ever."""
    assert CAPACITY < 1024 * 1100 * 4

    def body(world: WorkerWorld, start: Callable[[], Run]) -> None:
        connections: list[ServerConnection] = []
        made = ServerConnection.__init__
        ServerConnection.__init__ = lambda self, *facts: (connections.append(self), made(self, *facts))[1]  # type: ignore[method-assign]
        run, own = start(), LargeLayers()
        own, optimizer, steps = run.join(own, plain_sgd(own), loader(2, data(16)))
        (servers,) = connections

        def has_come() -> bool:
            for server in range(len(servers)):
                servers.poll(server)
            return servers.got >= 1024 * 1100 * 4

        LingeringBackward.has_come = has_come
        for _ in run.epochs(1):
            for x, _ in steps:
                own(x.repeat(1, 2)[:, :8]).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()

    run_served(2, "server(shards=2), every(1)", body)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ("server(levels=2), every(1)", "sum in its memory anyway"),
        ("server(levels=2), local(4)", "sum in its memory anyway"),
        ("server(levels=2), stale(2, samples=leased)", "make their steps together"),
        ("server(levels=2), async(speculate=0.5)", "remove speculate"),
        ("server(levels=2), deadline(1.0)", "wait for its slowest worker"),
        ("server(levels=3), async", "levels=3"),
    ],
)
def test_where_it_does_not_fit_it_is_refused_with_the_reason(plan: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        check(Plan.parse(plan), 4)
