"""What papers promise of sending early and in order, on throttled links: rows 59 and 188 of docs/systems.toml."""

import random
import statistics
import sys
from pathlib import Path

import pytest
import torch
from throttled import Trainee, layers, throttled

from shoal.core.events import ChoiceMade
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
    """Awan et al. 2017: two hosts of two workers. What a step takes more than its computing is what was not hidden."""
    together, alone, nothing = "together", "alone", "transfer"

    def body(world: WorkerWorld) -> Result:
        world = throttled(world, RATE, lambda w: on_hosts(w.group, w.dir))
        busy = {"backward": 1.5 * TRANSFER / LAYERS}
        trainees = {
            together: Trainee(world, "bsp", layers(LAYERS, **busy), together),
            alone: Trainee(world, "alone", layers(LAYERS, **busy), alone),
            nothing: Trainee(world, "bsp", layers(LAYERS), nothing),
        }
        found: dict[str, list[float]] = {name: [] for name in trainees}
        for _ in range(3):
            for name, trainee in trainees.items():
                world.group.gather(b"")
                found[name] += trainee.turn(2)
        return {name: torch.tensor(seconds) for name, seconds in found.items()}

    results = run_world(4, body, seconds=200.0)
    step, computing, transfer = (
        statistics.median(max(turn) for turn in zip(*(result[name].tolist() for result in results), strict=True))
        for name in (together, alone, nothing)
    )
    assert step - computing <= 0.5 * transfer
