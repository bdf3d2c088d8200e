"""What papers promise of sending early and in order, on throttled links: rows 23, 59 and 188 of docs/systems.toml."""

import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from by_links import by_files
from throttled import WIDTH, Trainee, layers, throttled
from torch import nn

from shoal.core.events import ChoiceMade
from shoal.groups.base import WorkerGroup
from shoal.plan.factors import choose_layers
from shoal.plan.plan import Plan
from shoal.sync.lockstep.auto_order import TOLD
from shoal.sync.lockstep.needed import NeededOrderSynchronizer
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train import synchronizers
from shoal.watch.tail import JournalTail

sys.path.append(str(Path(__file__).parents[1] / "sync" / "engine"))
from test_hosts import on_hosts

LAYERS = 8
RATE, TRANSFER = "11mbit", 1.5
"""Of a worker, and the seconds its gradients travel: long enough that a busy machine does not matter."""


class AnyOrder(NeededOrderSynchronizer):
    """As order(needed), but layers leave in another order at every step: what a graph without TicTac does."""

    chance = random.Random(0)

    def backward_began(self) -> None:
        self.settle()
        order = [number for number, urgency in enumerate(self._urgencies) if urgency]
        self.chance.shuffle(order)
        self._set_priorities(order)
        super().backward_began()


@pytest.mark.soak("clock")
@pytest.mark.timeout(300)
def test_tictac_the_needed_order_is_faster_and_steadier_than_any_order() -> None:
    """Hashemi et al. 2019: a step is at least a tenth shorter, its variance at most half. Forward passes sleep as
    long as gradients travel."""

    kinds = (NeededOrderSynchronizer, AnyOrder)

    def body(world: WorkerWorld) -> Result:
        world = throttled(world, RATE)
        found: dict[str, list[float]] = {kind.__name__: [] for kind in kinds}
        trainees = []
        for kind in kinds:
            synchronizers.OVERLAPPING["needed"] = kind
            trainees.append(Trainee(world, "tictac", layers(LAYERS, forward=TRANSFER / LAYERS), kind.__name__))
        for _ in range(3):
            for kind, trainee in zip(kinds, trainees, strict=True):
                world.group.gather(b"")
                found[kind.__name__] += trainee.turn(5)
        return {name: torch.tensor(seconds) for name, seconds in found.items()}

    first, second = run_world(2, body, seconds=200.0)
    both = [torch.maximum(first[kind.__name__], second[kind.__name__]).tolist() for kind in kinds]
    needed, random_ = both
    assert statistics.mean(needed) < 0.9 * statistics.mean(random_)
    assert 2 * statistics.variance(needed) < statistics.variance(random_)


@pytest.mark.soak("clock")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("forward", "codec"), [(TRANSFER, "order(needed)"), (0.0, "order(ready)")])
def test_auto_takes_what_is_faster(forward: float, codec: str) -> None:
    """Layer by layer where a forward pass takes as long as the gradients travel; not where there is nothing to hide."""

    def body(world: WorkerWorld) -> Result:
        world = throttled(world, RATE)
        trainee = Trainee(world, "order(auto)", layers(LAYERS, forward=forward / LAYERS), "run")
        trainee.turn(TOLD)
        trainee.run._journal.flush()
        events = JournalTail(world.dir / "run" / f"worker-{world.group.rank}.jsonl").read()
        (chosen,) = [event for event in events if isinstance(event, ChoiceMade)]
        return {"right": torch.tensor(chosen.codec == codec)}

    assert all(bool(result["right"]) for result in run_world(2, body, seconds=200.0))


@pytest.mark.soak("clock")
@pytest.mark.timeout(300)
def test_s_caffe_a_hierarchical_sum_hides_half_of_its_transfer_behind_the_backward_pass() -> None:
    """Awan et al. 2017: two hosts of two workers."""
    shown, transfer = shown_of_transfer("bsp", 4, lambda world: on_hosts(world.group, world.dir), layers)
    assert shown <= 0.5 * transfer


@pytest.mark.soak("clock")
@pytest.mark.timeout(300)
def test_poseidon_layers_that_leave_when_they_are_ready_by_factors_or_sums_hide_half_of_their_transfer() -> None:
    """Zhang et al. 2017: the last layer takes fewer bytes as factors, the others as sums."""
    plan = "allreduce, every(1), factors(batch=200, workers=2)"
    chosen = choose_layers(Plan.parse(plan).factors, {"sum": (WIDTH, WIDTH), "factors": (16 * WIDTH, WIDTH)}, 2)
    assert all(each.sends == each.layer for each in chosen)

    def model(count: int, **seconds: float) -> nn.Module:
        return nn.Sequential(*layers(count, **seconds), nn.Linear(WIDTH, 16 * WIDTH, bias=False))

    shown, transfer = shown_of_transfer(plan, 2, by_files, model)
    assert shown <= 0.5 * transfer


def shown_of_transfer(
    plan: str, workers: int, group_of: Callable[[WorkerWorld], WorkerGroup], model_of: Callable[..., nn.Module]
) -> tuple[float, float]:
    """What a step takes more than its computing, which is what was not hidden, and how long its gradients travel."""
    together, alone, nothing = "together", "alone", "transfer"

    def body(world: WorkerWorld) -> Result:
        world = throttled(world, RATE, group_of)
        busy = {"backward": 1.5 * TRANSFER / LAYERS}
        trainees = {
            together: Trainee(world, plan, model_of(LAYERS, **busy), together),
            alone: Trainee(world, "alone", model_of(LAYERS, **busy), alone),
            nothing: Trainee(world, plan, model_of(LAYERS), nothing),
        }
        found: dict[str, list[float]] = {name: [] for name in trainees}
        for _ in range(3):
            for name, trainee in trainees.items():
                world.group.gather(b"")
                found[name] += trainee.turn(2)
        return {name: torch.tensor(seconds) for name, seconds in found.items()}

    results = run_world(workers, body, seconds=200.0)
    step, computing, transfer = (
        statistics.median(max(turn) for turn in zip(*(result[name].tolist() for result in results), strict=True))
        for name in (together, alone, nothing)
    )
    return step - computing, transfer
