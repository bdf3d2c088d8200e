"""What every pace must satisfy."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from shoal.groups.base import WorkerGroup
from shoal.sync.backward import BackwardHooks
from shoal.sync.pace.base import SyncPace
from shoal.testing.world import Result, WorkerWorld, run_world

STEPS = 6


class BranchModel(nn.Module):
    """A model of which a pass may use a part: `used` names the branches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.trunk = nn.Linear(4, 8)
        self.left, self.right, self.idle = nn.Linear(8, 2), nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, x: Tensor, used: Sequence[str] = ("left", "right")) -> Tensor:
        hidden = torch.tanh(self.trunk(x))
        return torch.stack([getattr(self, name)(hidden).sum(1) for name in used]).sum(0)


class PaceCase(ABC):
    """Subclass, implement `make`; a pace that does not agree at every step sets `synchronous` to False."""

    sizes = (2, 3)
    synchronous = True

    @abstractmethod
    def make(self, group: WorkerGroup, directory: Path, names: list[str], parameters: list[Tensor]) -> SyncPace:
        """The pace under test, in one worker."""

    def follow(self, world: WorkerWorld, model: nn.Module) -> BackwardHooks:
        names, parameters = zip(*model.named_parameters(), strict=True)
        return BackwardHooks(parameters, self.make(world.group, world.dir, list(names), list(parameters)))

    def test_equals_one_process_with_the_whole_batch(self) -> None:
        """Of a synchronous pace: the same parameters as one process. Of any: a finite, lower loss."""
        data = torch.randn(12, 4, generator=torch.Generator().manual_seed(1)).expand(STEPS, 12, 4)

        def train(model: nn.Module, part: slice) -> list[float]:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
            losses = []
            for batch in data:
                loss = (model(batch[part]) - 1).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(float(loss.detach()))
            return losses

        def body(world: WorkerWorld) -> Result:
            model = BranchModel()
            self.follow(world, model)
            each = 12 // world.group.size
            losses = train(model, slice(world.group.rank * each, (world.group.rank + 1) * each))
            return {"losses": torch.tensor(losses), **{n: p.detach() for n, p in model.named_parameters()}}

        alone = BranchModel()
        train(alone, slice(None))
        for size in self.sizes:
            for result in run_world(size, body):
                assert result["losses"].isfinite().all()
                assert result["losses"][-1] < result["losses"][0]
                for name, parameter in alone.named_parameters():
                    if self.synchronous:
                        torch.testing.assert_close(result[name], parameter.detach(), atol=1e-6, rtol=0)

    def test_branches_used_by_some_do_not_hang(self) -> None:
        def body(world: WorkerWorld) -> Result:
            model = BranchModel()
            self.follow(world, model)
            for step in range(STEPS):
                used = ["left"] if (world.group.rank + step) % 2 else ["right"]
                model(torch.ones(2, 4), used).sum().backward()
            idle = model.idle.weight.grad
            return {
                "idle": torch.tensor(idle is None),
                "left": torch.tensor(model.left.weight.grad is not None),
            }

        for result in run_world(self.sizes[0], body):
            assert bool(result["idle"]), "a gradient nobody had must stay None"
            assert bool(result["left"])

    def test_a_worker_without_samples_takes_part(self) -> None:
        def body(world: WorkerWorld) -> Result:
            model = BranchModel()
            backward = self.follow(world, model)
            if world.group.rank == 0:
                backward.weigh(float(world.group.size))
                model(torch.ones(2, 4)).sum().backward()
            else:
                backward.pace.stand_in()
                model(torch.zeros(1, 4))
            gradient = model.trunk.weight.grad
            return {
                "had": torch.tensor(gradient is not None),
                "sum": gradient.sum() if gradient is not None else torch.zeros(()),
            }

        results = run_world(self.sizes[-1], body)
        alone = BranchModel()
        alone(torch.ones(2, 4)).sum().backward()
        assert alone.trunk.weight.grad is not None
        if self.synchronous:
            torch.testing.assert_close(results[0]["sum"], alone.trunk.weight.grad.sum())
        assert not any(bool(result["had"]) for result in results[1:])
