"""What a run leaves in its record."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from loops import data, loader, loss_of, sgd, train
from models import make

from shoal.core.events import (
    AnyEvent,
    ResultsReported,
    StepFinished,
    TrafficCounted,
    ValuesLogged,
    WorkerEnded,
    WorkerStarted,
)
from shoal.core.record import worker_file
from shoal.groups.base import SingleWorkerGroup
from shoal.sync.cost import ExchangeCost
from shoal.sync.observer import ExchangeObserver
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train import progress as module
from shoal.train.progress import StepProgress
from shoal.watch.tail import JournalTail


def events(directory: Path, rank: int) -> list[AnyEvent]:
    return list(JournalTail(worker_file(directory, rank)).read())


def phases(step: StepFinished) -> float:
    return step.load + step.forward_backward + step.exchange_wait + step.encode + step.update + step.other


def check_steps(directory: Path, size: int, steps: int, samples: int) -> None:
    """`steps` of worker 0; a worker that had no sample in some has fewer."""
    found = [[e for e in events(directory, rank) if isinstance(e, StepFinished)] for rank in range(size)]
    assert [step.step for step in found[0]] == list(range(steps))
    for step in (step for own in found for step in own):
        assert abs(phases(step) - step.seconds) < 1e-4
        assert min(step.load, step.forward_backward, step.exchange_wait, step.encode, step.update, step.other) >= 0
        assert len(step.ready) == len(step.done) == (size > 1)
    assert sum(step.samples for own in found for step in own) == samples


@pytest.mark.parametrize(("size", "samples"), [(1, 37), (2, 37), (4, 33)])
def test_steps_with_a_loader(size: int, samples: int) -> None:
    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make()
        model, optimizer, steps = run.join(model, sgd(model), loader(size, data(samples)))
        train(model, optimizer, (steps for _ in run.epochs(2)))
        for _ in steps:  # looking at data is no step
            pass
        run.close()
        world.group.gather(b"")
        if run.is_main:
            check_steps(run.dir, size, 10, 2 * samples)
        numbers = sum(p.numel() for p in model.parameters())
        for step in (e for e in events(run.dir, run.rank) if isinstance(e, StepFinished)):
            assert step.raw == step.sent == (4 * numbers if size > 1 else 0)
            assert step.wire == 0
        assert [e.epoch for e in events(run.dir, 0) if isinstance(e, StepFinished)] == [0] * 5 + [1] * 5
        return {}

    run_world(size, body)


@pytest.mark.parametrize("kind", ["plain", "two optimizers", "closure"])
@pytest.mark.parametrize("with_loader", [True, False])
def test_phases_add_up(kind: str, with_loader: bool) -> None:
    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make()
        optimizers = [sgd(model.layers[:2]), sgd(model.layers[2:])][: 1 + (kind == "two optimizers")]
        *_, steps = run.join(model, *optimizers, loader(2, data(32)))
        if not with_loader:
            run._progress.has_loader = False
            steps = [data()[:4]] * 4
        for x, y in steps:

            def closure() -> torch.Tensor:
                loss = loss_of(model, x, y)  # noqa: B023
                loss.backward()
                return loss

            for optimizer in optimizers:
                optimizer.zero_grad()
                optimizer.step(closure) if kind == "closure" else (closure(), optimizer.step())
        run.close()
        world.group.gather(b"")
        if run.is_main:
            check_steps(run.dir, 2, 4, 32 if with_loader else 0)
        return {}

    run_world(2, body)


def test_logs_and_reports() -> None:
    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make()
        model, optimizer, steps = run.join(model, sgd(model), loader(2, data(16)))
        for _ in run.epochs(2):
            for x, y in steps:
                loss = loss_of(model, x, y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                run.log(loss=loss, rate=0.1, number=3, tensor=torch.tensor([2.5]))
            run.report(accuracy=torch.tensor(0.5), wrong=4)
        run.log(loss=math.nan, largest=math.inf)
        run.close()
        run.close()
        found = events(run.dir, run.rank)
        assert isinstance(found[0], WorkerStarted)
        assert isinstance(found[-1], WorkerEnded)
        assert (found[-1].exit, found[-1].error) == ("done", "")
        assert any(isinstance(e, TrafficCounted) for e in found)
        logged = [e for e in found if isinstance(e, ValuesLogged)]
        assert [e.step for e in logged[:-1]] == [0, 1, 2, 3]
        assert logged[0].values.keys() == {"loss", "rate", "number", "tensor"}
        assert (logged[0].values["number"], logged[0].values["tensor"]) == (3.0, 2.5)
        reported = [e for e in found if isinstance(e, ResultsReported)]
        assert [(e.epoch, e.metrics) for e in reported] == [(n, {"accuracy": 0.5, "wrong": 4.0}) for n in range(2)]
        shown = world.group.board.read(run.rank)["loss"]
        return {"shown": torch.tensor([shown, logged[-1].values["loss"]])}

    for result in run_world(2, body):
        assert result["shown"].isnan().all()


class Kept:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.events: list[StepFinished] = []

    def emit(self, event) -> None:  # type: ignore[no-untyped-def]
        self.events.append(event)


def test_phases_of_a_step_by_a_clock_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module, "now", lambda: clock.now)
    sink, spent = Kept(), ExchangeCost()
    progress = StepProgress(sink, SingleWorkerGroup())
    progress.has_loader = True
    progress.watch(spent, SimpleNamespace(observer=ExchangeObserver(), peers=()))  # type: ignore[arg-type]

    def passes(seconds: float) -> None:
        clock.now += seconds

    progress.load_began()
    passes(1)
    progress.load_ended(4)
    passes(10)
    spent.encode, spent.wait = 2.0, 3.0
    progress.update_began()
    passes(0.5)
    progress.update_ended(True)
    passes(0.25)
    spent.wait += 4.0  # a backward pass after the step, for the next one
    passes(4)
    progress.load_began()
    (step,) = sink.events
    assert (step.load, step.forward_backward, step.encode, step.exchange_wait) == (1, 5, 2, 7)
    assert (step.update, step.other, step.seconds, step.samples) == (0.5, 0.25, 15.75, 4)
