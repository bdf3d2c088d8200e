"""`local(auto)` on processes whose clocks are made up: all choose the same length, whoever is slow."""

import itertools
import math

import pytest
import torch
from test_local_rounds import exchange, move

from shoal.sync.local.adaptive import POWER, AdaptiveRoundsSynchronizer, read_seconds
from shoal.sync.local.average import AverageOuter
from shoal.sync.local.round_length import FIRST, RoundFigures, RoundLengthChooser
from shoal.sync.observer import CodecSwitched
from shoal.sync.synchronizer import EqualWeights, Part
from shoal.testing import SynchronizerCase
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.step_transaction import StepTransaction


class TestAdaptive(SynchronizerCase):
    sizes = (2, 2)
    synchronous = False

    def make(self, group, directory):
        return AdaptiveRoundsSynchronizer(exchange(group, directory), AverageOuter())


class MadeUpClock:
    """A step takes `step` seconds and an exchange `exchange`: it is read when one begins and when it ends."""

    def __init__(self, step: float, exchange: float) -> None:
        self.step, self.exchange, self.moment, self.inside = step, exchange, 0.0, False

    def __call__(self) -> float:
        self.moment += self.exchange if self.inside else 0.0
        self.inside = not self.inside
        return self.moment


def chosen(world: WorkerWorld, apart: float, steps: int) -> tuple[AdaptiveRoundsSynchronizer, list[int]]:
    """Worker 1 is twice as slow, so worker 0 waits for it in exchanges. `apart`: what they do not have in common."""
    rank = world.group.rank
    clock = MadeUpClock(0.01 * (1 + rank), 0.09 + (1 - rank))
    parameter = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    made = AdaptiveRoundsSynchronizer(exchange(world.group, world.dir), AverageOuter(), clock=clock)
    session = world.group.session
    part = Part(["p"], [parameter], session, StepTransaction(session), EqualWeights(session), optimizers=[optimizer])
    made.open(part)
    lengths = []
    for _ in range(steps):
        clock.moment += clock.step
        rounds = made.totals.rounds
        move(made, optimizer, parameter, torch.tensor([1.0, apart * (1 - 2 * rank)]))
        if made.totals.rounds > rounds:
            lengths.append(made.steps)
    return made, lengths


def test_all_choose_the_same_length_by_the_exchange_in_which_nobody_was_waited_for() -> None:
    def body(world: WorkerWorld) -> Result:
        made, lengths = chosen(world, 0.0, 400)
        (first, *_) = made.exchange.observer.take_decisions()
        assert isinstance(first, CodecSwitched)
        assert first.codec == f"local({4 * FIRST})"
        assert "a step takes 15 ms" in first.reason
        return {"lengths": torch.tensor(lengths)}

    first, second = run_world(2, body)
    assert torch.equal(first["lengths"], second["lengths"])
    # 0.09 s, of steps of 0.015 s in the mean, and not the second that worker 0 waits
    assert 54 <= int(first["lengths"][-1]) <= 80


def test_rounds_are_shorter_while_the_replicas_have_less_in_common_than_apart() -> None:
    def body(world: WorkerWorld) -> Result:
        return {"alike": torch.tensor(chosen(world, 0.5, 300)[1]), "apart": torch.tensor(chosen(world, 2.0, 300)[1])}

    for result in run_world(2, body):
        assert int(result["apart"][-1]) < int(result["alike"][-1])


def test_a_newcomer_is_told_the_length() -> None:
    def body(world: WorkerWorld) -> Result:
        made, lengths = chosen(world, 0.0, 200)
        other = AdaptiveRoundsSynchronizer(exchange(world.group, world.dir), AverageOuter())
        parameter = torch.zeros(2, requires_grad=True)
        part = Part(["p"], [parameter], world.group.session, optimizers=[torch.optim.SGD([parameter], lr=1.0)])
        other.open(part, made.state())
        assert other.steps == lengths[-1] != FIRST
        return {}

    run_world(2, body)


def test_sums_of_seconds_are_read() -> None:
    assert read_seconds(2.0, 0.02, 2 * 0.5**-POWER) == pytest.approx((0.01, 0.5))


def test_sums_that_cannot_be_seconds_change_no_length() -> None:
    """A remote worker's word is in them."""
    lies = (math.nan, math.inf, -math.inf, -1e300, -1.0, 0.0, 5e-324, 1e-30, 1.0, 1e30, 1e300)
    for words in itertools.product(lies, repeat=3):
        chooser, seconds = RoundLengthChooser(), read_seconds(*words)
        for drift in (None, *lies):
            if seconds is not None:
                chooser.update(RoundFigures(*seconds, drift))
            assert 1 <= chooser.steps <= 4 * FIRST
            chooser.steps = FIRST
