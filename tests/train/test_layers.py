"""Forward told from backward, layer from layer; and what a joined model's hooks leave in its copies."""

import copy
import io
from types import SimpleNamespace

import pytest
import torch
from loops import data, loader, loss_of, sgd, train
from models import make
from test_progress import Kept, events
from torch import nn

from shoal.core.events import LayerTimes, ResultsReported, StepFinished
from shoal.groups.base import SingleWorkerGroup
from shoal.sync.cost import ExchangeCost
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train import layers as layers_module
from shoal.train import progress as module
from shoal.train.layers import LayerTimer, layer_of
from shoal.train.members import sort_members
from shoal.train.progress import StepProgress
from shoal.watch.quantities import quantities
from shoal.watch.record import RunRecord
from shoal.watch.worker import read_workers


@pytest.mark.parametrize(("size", "plan"), [(1, ""), (2, ""), (2, "alone, every(1)")])
def test_quantities_of_a_run(size: int, plan: str) -> None:
    def body(world: WorkerWorld) -> Result:
        run, model = world.start(plan), make()
        model, optimizer, steps = run.join(model, sgd(model), loader(size, data(37)))
        train(model, optimizer, (steps for _ in run.epochs(4)))
        run.close()
        world.group.gather(b"")
        for step in (e for e in events(run.dir, run.rank) if isinstance(e, StepFinished)):
            assert step.forward > 0
            assert step.backward > 0
            assert step.forward + step.backward == pytest.approx(step.forward_backward, abs=2e-6)
        found = quantities(read_workers(RunRecord.open(run.dir)))
        parts = (found.input, found.forward, found.backward, found.update, found.aggregation, found.other)
        assert sum(parts) == pytest.approx(found.iteration, rel=0.05)
        assert (found.workers, found.workers_per_host, found.host_copy) == (size, size, 0.0)
        assert found.samples_per_worker_and_batch == pytest.approx(4 * 37 / (4 * 5 * size), rel=0.2)
        owners = dict.fromkeys(layer_of(name) for name, _ in model.named_parameters())
        assert list(found.backward_by_layer) == list(found.aggregation_by_layer) == list(owners)
        assert sum(found.backward_by_layer.values()) > 0
        assert (sum(found.aggregation_by_layer.values()) > 0) == (size > 1 and not plan)
        return {}

    run_world(size, body)


def test_a_step_with_two_forward_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "now", lambda: clock.now)
    sink = Kept()
    progress = StepProgress(sink, SingleWorkerGroup())
    progress.has_loader = True
    outer, inner = object(), object()
    progress.load_began()
    progress.load_ended(4)
    for _ in range(2):
        clock.now += 1  # before the model is called: forward the first time, backward the second
        progress.forward_began(outer)
        progress.forward_began(inner)
        progress.forward_ended(inner)
        clock.now += 2
        progress.forward_ended(outer)
        clock.now += 4
    progress.update_began()
    progress.update_ended(True)
    progress.forward_began(outer)  # evaluation after the step
    clock.now += 8
    progress.forward_ended(outer)
    progress.load_began()
    (step,) = sink.events
    assert (step.forward, step.backward, step.other) == (5, 9, 8)


def test_layers_by_a_clock_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(layers_module, "now", lambda: clock.now)
    model, spent = nn.Sequential(nn.Linear(3, 1, bias=False), nn.Linear(1, 1, bias=False)), ExchangeCost()
    timer = LayerTimer(sort_members([model]), spent)
    for measured in range(1, 4):  # the first is forgotten when there is a second
        timer.forward_ended(clock.now)
        clock.now += 2 * measured
        timer._arrived(1, model[1].weight)
        clock.now += 5 * measured
        spent.wait += 4 * measured
        timer._arrived(0, model[0].weight)
        spent.parts, spent.ready, spent.done = [[1, 0, 9]], [1.0], [5.0]
        timer.step_ended(clock.now)
        clock.now += 1
    assert timer.samples == 2
    assert timer.means() == ({"0": 2.5, "1": 5.0}, {"0": 3.0, "1": 1.0})


def test_copies_of_a_joined_model_are_free_of_the_run() -> None:
    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make()
        run.join(model, sgd(model))
        again = copy.deepcopy(model)
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=False)
        told: list[object] = []
        run._progress.forward_began = told.append  # type: ignore[method-assign]
        x, y = data()[:4]
        assert torch.equal(loss_of(again, x, y), loss_of(loaded, x, y))
        assert told == []
        return {}

    run_world(1, body)


def test_training_ends_when_worker_0_reached_the_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_UNTIL", "accuracy>=0.5")

    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make()
        run.join(model, sgd(model))
        for epoch in run.epochs(9):
            run.report(accuracy=(epoch if run.is_main else 9 - epoch) / 5)
        run.close()
        return {"reports": torch.tensor(sum(isinstance(e, ResultsReported) for e in events(run.dir, run.rank)))}

    assert [result["reports"].item() for result in run_world(2, body)] == [4, 4]


def test_no_layer_is_told_of_before_there_is_one() -> None:
    sink = Kept()
    StepProgress(sink, SingleWorkerGroup()).tell_layers()
    assert not any(isinstance(event, LayerTimes) for event in sink.events)
