"""Seeds: what is equal between runs, and what differs between workers."""

import random

import numpy as np
import torch
from loops import data, loader, loss_of, parameters, sgd
from models import MLP, make
from torch import Tensor, nn

from shoal.testing.world import Result, WorkerWorld, run_world


class Dropping(MLP):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


def trained(size: int, seed: int) -> list[Result]:
    def body(world: WorkerWorld) -> Result:
        run = world.start(seed=seed)
        model = Dropping()
        model, optimizer, steps = run.join(model, sgd(model), loader(size))
        losses = []
        for _ in run.epochs(2):
            for x, y in steps:
                loss = loss_of(model, x, y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(float(loss.detach()))
        return parameters(model) | {"losses": torch.tensor(losses)}

    return run_world(size, body)


def test_the_same_seed_gives_the_same_run() -> None:
    first, again, other = trained(2, 5), trained(2, 5), trained(2, 6)
    for one, two in zip(first, again, strict=True):
        assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(first[0]["losses"], other[0]["losses"])
    assert not torch.equal(first[0]["layers.0.weight"], other[0]["layers.0.weight"])
    assert torch.equal(first[0]["layers.0.weight"], first[1]["layers.0.weight"])


def drawn(size: int) -> list[Result]:
    """What a script draws before `join`, after it, and after a pass over the loader and another `join`."""

    def draw() -> Tensor:
        own = torch.tensor([random.random(), np.random.rand()], dtype=torch.float32)
        return torch.cat([own, torch.rand(2), nn.functional.dropout(torch.ones(16))])

    def body(world: WorkerWorld) -> Result:
        run = world.start(seed=9)
        result = {"before": draw()}
        model, _, steps = run.join(model := make(), sgd(model), loader(size, data(33)))
        result["joined"] = draw()
        for _ in steps:
            pass
        result["passed"] = draw()
        run.join(nn.Linear(2, 2))
        result["again"] = draw()
        return result

    return run_world(size, body)


def test_worker_0_draws_what_a_single_process_draws() -> None:
    (alone,) = drawn(1)
    first, second, third, fourth = drawn(4)
    assert all(torch.equal(first[name], alone[name]) for name in alone)
    for other in (second, third, fourth):
        assert torch.equal(other["before"], first["before"])
        for name in ("joined", "passed", "again"):
            assert (other[name] != first[name]).any()
        assert not torch.equal(other["again"], other["joined"])
    assert not torch.equal(second["joined"], third["joined"])
