"""The plan `alone`: workers share the data and nothing else."""

import torch
from loops import data, loader, parameters, sgd, train
from models import make
from test_progress import events

from shoal.core.events import StepFinished, WarningRaised, WorkerEnded
from shoal.testing.world import Result, WorkerWorld, run_world


def test_models_differ_and_nothing_is_sent() -> None:
    def body(world: WorkerWorld) -> Result:
        run, model = world.start("alone"), make()
        model, optimizer, steps = run.join(model, sgd(model), loader(2, data(33)))
        train(model, optimizer, (steps for _ in run.epochs(2)))
        run.close()
        found = events(run.dir, run.rank)
        steps_ = [e for e in found if isinstance(e, StepFinished)]
        assert len(steps_) == (10 if run.rank == 0 else 8)
        assert all((e.raw, e.sent, e.wire, e.exchange_wait, e.encode) == (0, 0, 0, 0, 0) for e in steps_)
        assert sum(e.samples for e in steps_) == (34 if run.rank == 0 else 32)
        assert any(isinstance(e, WarningRaised) for e in found) == run.is_main
        assert isinstance(found[-1], WorkerEnded)
        return parameters(model)

    first, second = run_world(2, body)
    assert all(first[name].isfinite().all() for name in first)
    assert not any(torch.equal(first[name], second[name]) for name in first)
