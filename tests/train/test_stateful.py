"""Objects that are joined for their state: a GradScaler, an average, whatever has `state_dict`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from loops import data, loader, loss_of, parameters, sgd
from models import make

from shoal.core.errors import UsageError
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.checkpoint.manifest import listed


class Average:
    """A moving average a script keeps itself."""

    def __init__(self, start: float) -> None:
        self.mean = torch.tensor([start])
        self.updates = 0

    def update(self, value: float) -> None:
        self.mean = 0.5 * self.mean + 0.5 * value
        self.updates += 1

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean, self.updates = state["mean"].clone(), state["updates"]


def test_all_begin_with_worker_0s_state_and_skip_alike() -> None:
    """One worker's loss overflows once: every scaler sees it in the mean, and halves its scale."""

    def body(world: WorkerWorld) -> Result:
        run, model = world.start(), make()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (4 + run.rank))
        average = Average(float(run.rank))
        model, optimizer, steps, scaler, average = run.join(model, sgd(model), loader(2), scaler, average)
        scales = []
        for number, (x, y) in enumerate(steps):
            loss = loss_of(model, x, y) * (float("inf") if number == 1 and run.rank == 1 else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
        return parameters(model) | {"scales": torch.tensor(scales), "mean": average.mean}

    first, second = run_world(2, body)
    assert first["scales"].tolist() == second["scales"].tolist() == [16.0, 8.0, 8.0, 8.0, 8.0]
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("size", [1, 2])
def test_checkpoints_hold_their_state(size: int, tmp_path: Path) -> None:
    def body(world: WorkerWorld) -> Result:
        run, model = world.start(name="one", checkpoint="2steps"), make()
        scaler, average = torch.amp.GradScaler("cpu", init_scale=64.0), Average(1.0)
        scaler.set_growth_interval(2)
        model, optimizer, steps, *_ = run.join(model, sgd(model), loader(2, data(32)), scaler, average)
        for x, y in steps:
            scaler.scale(loss_of(model, x, y)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            average.update(3.0)
        run.close()
        world.group.gather(b"")  # worker 0 has written it
        kept = sorted(listed(world.dir / "one"))[-1]
        again, model = world.start(name="two", resume=kept), make()
        scaler, average = torch.amp.GradScaler("cpu", init_scale=1.0), Average(0.0)
        again.join(model, sgd(model), loader(2, data(32)), scaler, average)
        return {"scale": torch.tensor(scaler.get_scale()), "updates": torch.tensor(average.updates)}

    for result in run_world(size, body):
        updates = int(result["updates"])  # a checkpoint that is due while another is written comes a step later
        assert updates >= 2
        assert float(result["scale"]) == 64.0 * 2 ** (updates // 2)


def test_what_does_not_fit_is_refused_by_name() -> None:
    average = Average(0.0)
    average.mean = len  # type: ignore[assignment]

    def body(world: WorkerWorld) -> None:
        with pytest.raises(UsageError, match=r"a Average that cannot be handed on: its state\['mean'\] is a builtin"):
            world.start().join(make(), average)
        with pytest.raises(UsageError, match=r"join\(\) got a int; give it modules"):
            world.start(name="two").join(make(), 5)

    run_world(1, body)
