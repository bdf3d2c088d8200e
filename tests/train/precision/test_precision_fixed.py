"""Gupta et al.: weights in fixed point, and why they are rounded at random."""

import pytest
import torch
from classes import learn
from torch import nn

from shoal.testing import WorkerWorld, run_world


def test_weights_are_on_the_grid_from_the_first_moment_and_replicas_are_equal() -> None:
    def body(world: WorkerWorld):
        run = world.start("weights(bits=6, frac=3), fp16")
        model = nn.Linear(20, 30)
        nn.init.normal_(model.weight, std=4)
        model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=0.5))
        found = [model.weight.detach().clone()]
        for _ in range(3):
            model(torch.randn(5, 20)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(model.weight.detach().clone())
        return {"weights": torch.stack(found)}

    one, two = run_world(2, body)
    assert torch.equal(one["weights"], two["weights"])
    levels = one["weights"] * 8
    assert torch.equal(levels, levels.round())
    assert float(levels.min()) == -32, "what is out of range stays at its end"
    assert float(levels.max()) == 31


@pytest.mark.soak("convergence")
def test_gupta_random_rounding_trains_where_the_nearest_does_not() -> None:
    """8 bits before the point and 8 behind: most updates are below half of 1/256, so to the nearest they are lost."""
    plans = {"full": "", "random": "weights(16, 8, stochastic)", "nearest": "weights(16, 8, nearest)"}

    def body(world: WorkerWorld):
        found = {}
        for name, text in plans.items():
            run = world.start(text, name=name)
            found[name] = torch.tensor(learn(run, lr=0.01, epochs=4)[1])
            run.close()
        return found

    (found,) = run_world(1, body)
    assert found["full"] > 0.97
    assert found["random"] > found["full"] - 0.005
    assert found["nearest"] < found["full"] - 0.15
