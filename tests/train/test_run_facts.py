"""What a run tells its script: which worker it is, which step is under way, and when all have come to a point."""

import math

import pytest
import torch
from loops import loader, sgd, train
from models import make

from shoal.core.errors import PayloadError
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.members import read_value


def test_steps_and_samples_are_counted_over_epochs() -> None:
    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make()
        model, optimizer, steps = run.join(model, sgd(model), loader(2))
        seen = []
        for _ in run.epochs(2):
            train(model, optimizer, [steps], lambda: seen.append(run.step))
        return {"seen": torch.tensor(seen), "facts": torch.tensor([run.worker_id, run.step, run.samples])}

    first, second = run_world(2, body)
    assert first["seen"].tolist() == second["seen"].tolist() == list(range(10))
    assert first["facts"].tolist()[:2] == [0, 10]
    assert second["facts"].tolist()[:2] == [1, 10]
    assert first["facts"][2] + second["facts"][2] == 2 * 37


def test_a_barrier_waits_for_all() -> None:
    def body(world: WorkerWorld) -> Result:
        run = world.start()
        if run.rank == 1:
            (world.dir / "here").touch()
        run.barrier()
        return {"there": torch.tensor((world.dir / "here").exists())}

    assert all(result["there"] for result in run_world(2, body))


def test_all_workers_see_the_same_mean_of_their_numbers() -> None:
    def body(world: WorkerWorld) -> Result:
        run = world.start()
        means = [run.mean(0.1 * run.rank), run.mean(torch.tensor(float(run.rank))), run.mean(math.inf * (run.rank - 1))]
        return {"means": torch.tensor(means, dtype=torch.float64)}

    first, second, third = (result["means"].tolist() for result in run_world(3, body))
    assert first[:2] == second[:2] == third[:2] == [math.fsum((0.0, 0.1, 0.2)) / 3, 1.0]
    assert math.isnan(first[2])


@pytest.mark.parametrize("said", [b"", b"x", b"1,2"])
def test_what_is_no_number_is_refused(said: bytes) -> None:
    with pytest.raises(PayloadError, match="is no number"):
        read_value(said)
