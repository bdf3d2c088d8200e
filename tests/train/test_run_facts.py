"""What a run tells its script: which worker it is, which step is under way, and when all have come to a point."""

import torch
from loops import loader, sgd, train
from models import make

from shoal.testing.world import Result, WorkerWorld, run_world


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
