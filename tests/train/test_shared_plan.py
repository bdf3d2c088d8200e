"""Training under `shared` through `run.join`: what it comes to, what it keeps and what it refuses."""

import re
from pathlib import Path

import pytest
import torch
from by_links import linked_by_files
from forked import command
from loops import batches, data, loader, loss_of, train
from models import make
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from shoal.core.errors import UsageError
from shoal.launch.context import WorkerContext
from shoal.plan.plan import Plan
from shoal.testing.world import Result, WorkerWorld, run_world
from shoal.train.run import Run

EPOCHS = 20


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.002)


def final_loss(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return loss_of(model, *data().tensors)


class Normalized(nn.Sequential):
    """Its running statistics are each worker's own, and averaged when all meet."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("kind", "plan"), [("mlp", "shared(steps=3)"), (Normalized, "shared(steps=3)"), ("mlp", "shared(3, clusters=2)")]
)
def test_the_loss_is_that_of_synchronous_training_and_all_hold_the_same(kind: str | type[nn.Module], plan: str) -> None:
    def body(world: WorkerWorld) -> Result:
        run = world.start(plan)
        model = make(kind)
        model, optimizer, steps = run.join(model, adam(model), loader(2))
        train(model, optimizer, (steps for _ in run.epochs(EPOCHS)))
        model.eval()
        return {"loss": final_loss(model), **{n: t.detach().clone() for n, t in model.state_dict().items()}}

    alone = make(kind)
    train(alone, adam(alone), [batches(data(), epoch) for epoch in range(EPOCHS)])
    alone.eval()
    first, second = run_world(2, body)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert float(first["loss"]) < 1.05 * float(final_loss(alone))


def test_two_joins_share_a_copy_each() -> None:
    def body(world: WorkerWorld) -> Result:
        run = world.start("shared(steps=3)")
        left, right = make("mlp"), make("mlp")
        left, first = run.join(left, adam(left))
        right, second, steps = run.join(right, adam(right), loader(2))
        for _ in run.epochs(2):
            for x, y in steps:
                (loss_of(left, x, y) + loss_of(right, x, y)).backward()
                for optimizer in (first, second):
                    optimizer.step()
                    optimizer.zero_grad()
        return {f"{n}": p.detach().clone() for n, p in enumerate([*left.parameters(), *right.parameters()])}

    one, other = run_world(2, body)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_it_is_refused_across_hosts() -> None:
    def body(world: WorkerWorld) -> Result:
        group = linked_by_files(world.group, world.dir)
        run = Run(WorkerContext(group, "run", world.dir / "run", "shared", 0, begun=False), Plan.parse("shared"))
        model = make("mlp")
        with pytest.raises(UsageError, match=re.escape("in the memory of one host")):
            run.join(model, adam(model))
        return {}

    run_world(2, body)


class SparseLogistic(nn.Module):
    """A weight for each of a thousand features, of which a sample has five."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.EmbeddingBag(1000, 1, mode="sum", sparse=True)
        nn.init.zeros_(self.weights.weight)

    def forward(self, features: Tensor) -> Tensor:
        return self.weights(features).squeeze(1)


def sparse_data(samples: int = 1600) -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    features = torch.randint(0, 1000, (samples, 5), generator=generator)
    true = torch.randn(1000, generator=generator)
    return TensorDataset(features, (true[features].sum(1) > 0).float())


def sparse_loss(model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(model(features), labels)


def test_niu_sparse_updates_without_locks_come_to_the_loss_of_one_process() -> None:
    """Two workers with batches of one worker's size: as many steps in all, and a loss within 1 %."""

    def body(world: WorkerWorld) -> Result:
        run = world.start("hogwild") if world.group.size > 1 else world.start("alone")
        model = SparseLogistic()
        dataset = sparse_data()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        batches_ = DataLoader(dataset, batch_size=4, shuffle=True)
        model, optimizer, batches_ = run.join(model, optimizer, batches_)
        for _ in run.epochs(1):
            for x, y in batches_:
                optimizer.zero_grad()
                sparse_loss(model, x, y).backward()
                optimizer.step()
        with torch.no_grad():
            return {"loss": sparse_loss(model, *dataset.tensors)}

    ((one,), (two, _)) = run_world(1, body), run_world(2, body)
    assert float(two["loss"]) == pytest.approx(float(one["loss"]), rel=0.01)


def test_a_command_that_brings_other_hosts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "script.py").touch()
    done = command(tmp_path, "run", "-w", "2", "--listen", "127.0.0.1:0", "--plan", "shared", "script.py").wait(30)
    assert done.code == 2
    assert done.err.startswith("shoal: --listen with 'shared': its workers share one host's memory")
