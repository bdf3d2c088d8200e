"""The rules of servers: with one worker they are torch's optimizers, and elements do not see each other."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.optim import SGD, Adagrad, Adam, Optimizer

from shoal.core.errors import UsageError
from shoal.sync.server.rules.table import RULES, make_rule
from shoal.sync.server.shard import ParameterShard
from shoal.sync.server.shard_state import ShardUpdate

OPTIMIZERS: dict[str, tuple[dict[str, float], Callable[[list[torch.Tensor]], Optimizer]]] = {
    "sgd": ({}, lambda p: SGD(p, lr=0.1)),
    "momentum": ({"momentum": 0.8}, lambda p: SGD(p, lr=0.1, momentum=0.8)),
    "nesterov": ({"momentum": 0.8}, lambda p: SGD(p, lr=0.1, momentum=0.8, nesterov=True)),
    "adagrad": ({}, lambda p: Adagrad(p, lr=0.1)),
    "adam": ({"first": 0.8, "second": 0.95}, lambda p: Adam(p, lr=0.1, betas=(0.8, 0.95))),
}


@pytest.mark.parametrize("bound", [0, None])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_with_one_worker_a_rule_is_the_optimizer_of_torch(name: str, bound: int | None) -> None:
    settings, make = OPTIMIZERS[name]
    start = torch.randn(50, generator=torch.Generator().manual_seed(1))
    parameter = start.clone().requires_grad_()
    optimizer = make([parameter])
    shard = ParameterShard(start.numpy(), make_rule(name, rate=0.1, **settings), ["a"], bound)
    for clock in range(20):
        found = shard.pull("a", clock)
        assert found is not None
        shard.push(ShardUpdate("a", clock, np.sin(found.values * 3).astype(np.float32)))
        parameter.grad = torch.sin(parameter.detach() * 3)
        optimizer.step()
    assert np.allclose(shard.state.values, parameter.detach().numpy(), atol=1e-6)


@pytest.mark.parametrize("name", RULES)
def test_an_element_depends_on_itself_alone(name: str) -> None:
    """So a shard may be cut anywhere, and two halves have the bits of the whole."""
    settings = {"rate": 0.1} if name not in ("add", "mean") else {}
    source = np.random.default_rng(2)
    start, updates = source.normal(size=64).astype(np.float32), source.normal(size=(5, 64)).astype(np.float32)
    results = []
    for part in (slice(0, 64), slice(0, 21), slice(21, 64)):
        shard = ParameterShard(start[part], make_rule(name, **settings), ["a"], 0)
        for clock, update in enumerate(updates):
            shard.push(ShardUpdate("a", clock, update[part]))
        results.append(shard.state.values)
    assert np.array_equal(results[0], np.concatenate(results[1:]))


def test_the_list_is_closed() -> None:
    assert set(RULES) == {"mean", "add", "sgd", "momentum", "adagrad", "adam", "nesterov"}
    with pytest.raises(UsageError, match=r"'lion' is unknown to servers.*write mean, add, sgd"):
        make_rule("lion")
    with pytest.raises(UsageError, match=r"rule add does not go with rate=0\.1; its settings are: nothing"):
        make_rule("add", rate=0.1)
