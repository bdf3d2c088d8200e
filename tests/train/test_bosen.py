"""What matters most first, under a fixed rate: row 58 of docs/systems.toml."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from throttled import throttled

from shoal.core.clock import now
from shoal.sync.aggregate import largest
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.wire.codecs.largest import Weights, spans
from shoal.wire.layout import FlatLayout

FEATURES, OUTPUTS, SAMPLES = 1 << 16, 4, 128
PLAN = "order(largest, budget=128kb)"
"""An eighth of the gradients, a quarter of a second on the line."""
GOAL, MOST = 0.3, 40
Weigh = Callable[[torch.Tensor, FlatLayout], Weights]


def by_chance() -> Weigh:
    chance = np.random.default_rng(0)
    return lambda whole, layout: chance.random(len(spans(layout)), np.float32)


def in_turn() -> Weigh:
    """First in, first out: whatever has waited longest."""
    done = 0

    def weigh(whole: torch.Tensor, layout: FlatLayout) -> Weights:
        nonlocal done
        pieces = len(spans(layout))
        behind = (np.arange(pieces) - done) % pieces
        done += pieces // 8
        return (pieces - behind).astype(np.float32)

    return weigh


def seconds_to_goal(world: WorkerWorld, name: str) -> float:
    """Least squares whose features differ much in size, until the loss is at `GOAL` of what it was."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, FEATURES, generator=generator) * torch.logspace(0, -2, FEATURES)
    labels = inputs @ torch.randn(FEATURES, OUTPUTS, generator=generator)
    model = torch.nn.Linear(FEATURES, OUTPUTS, bias=False)
    torch.nn.init.zeros_(model.weight)
    steepest = float(torch.linalg.matrix_norm(inputs @ inputs.T, 2)) * 2 / (SAMPLES * OUTPUTS)
    run = world.start(PLAN, name=name, checkpoint="off")
    model, optimizer = run.join(model, torch.optim.SGD(model.parameters(), lr=0.2 / steepest))
    half = slice(run.rank * SAMPLES // 2, (run.rank + 1) * SAMPLES // 2)
    world.group.gather(b"")
    began, first = now(), float(labels.square().mean())
    for _ in range(MOST):
        (model(inputs[half]) - labels[half]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            if float((model(inputs) - labels).square().mean()) <= GOAL * first:
                return now() - began
    raise AssertionError(f"{name}: never at the goal")


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_bosen_largest_first_is_at_the_goal_sooner_than_by_chance_or_in_turn() -> None:
    """Wei et al. 2015; all workers hold the same weights, so all stop at the same step."""

    def body(world: WorkerWorld) -> Result:
        world = throttled(world, "4mbit")
        orders = {"largest": largest.weigh, "chance": by_chance(), "turn": in_turn()}
        found = {}
        for name, weigh in orders.items():
            largest.weigh = weigh
            found[name] = torch.tensor(seconds_to_goal(world, name))
        return found

    for result in run_world(2, body, seconds=200.0):
        assert float(result["largest"]) < 0.9 * min(float(result["chance"]), float(result["turn"]))
