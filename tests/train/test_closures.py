"""Optimizers that look at the loss see that of all workers: they make the same passes, and the same steps."""

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from by_servers import run_served
from loops import assert_equal, parameters
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam, Optimizer
from torch.utils.data import DataLoader, TensorDataset

from shoal.core.errors import PayloadError
from shoal.testing.world import Result, WorkerWorld
from shoal.train.closures import SharedLoss, combine_losses, looks_at_loss, read_loss
from shoal.train.run import Run


def word(loss: float, samples: int = 1) -> bytes:
    return msgspec.json.encode(SharedLoss(repr(loss), samples))


def test_a_loss_is_over_the_samples_of_all() -> None:
    said = [word(1.0, 1), b"short", word(4.0, 3)]
    assert combine_losses(said, "mean") == 3.25
    assert combine_losses(said, "sum") == 5.0
    assert math.isnan(combine_losses([word(1.0), word(math.inf)], "mean"))


@pytest.mark.parametrize("lie", [b'{"loss":"x","samples":1}', b'{"loss":"1","samples":0}', b'{"loss":1}', b'{"loss"'])
def test_what_no_worker_says_of_a_loss_is_refused(lie: bytes) -> None:
    with pytest.raises((PayloadError, msgspec.MsgspecError)):
        read_loss(lie)


class Searching(SGD):
    """One of somebody else."""


@pytest.mark.parametrize(("kind", "looks"), [(LBFGS, True), (Searching, True), (SGD, False), (Adam, False)])
def test_only_some_optimizers_look_at_the_loss(kind: type[Optimizer], looks: bool) -> None:
    assert looks_at_loss(kind([torch.zeros(1)], lr=0.1)) == looks  # type: ignore[call-arg]


def rows() -> tuple[Tensor, Tensor]:
    """The first half of a batch can be fitted at once, the second cannot."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(32, 5, generator=generator, dtype=torch.float64)
    y = x.sum(1, keepdim=True)
    y[1::2] = 5 * torch.randn(16, 1, generator=generator, dtype=torch.float64)
    return x, y


def fitted(model: nn.Module, optimizer: Optimizer, batches: Any, by_name: bool) -> list[float]:
    losses = []
    for x, y in batches:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = ((model(x).tanh() - y.tanh()) ** 2).mean()
            loss.backward()
            return loss

        loss: Any = optimizer.step(closure=closure) if by_name else optimizer.step(closure)  # type: ignore[arg-type]
        losses.append(float(loss.detach()))
    return losses


def made(search: str | None) -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(5, 1).double()
    return model, LBFGS(model.parameters(), lr=0.5, max_iter=6, tolerance_change=1e-3, line_search_fn=search)


@pytest.mark.parametrize(
    ("plan", "search", "samples"),
    [
        ("bsp", None, 32),
        ("bsp", "strong_wolfe", 32),
        ("bsp", None, 30),
        ("bsp", "strong_wolfe", 30),
        ("sandblaster", "strong_wolfe", 30),
    ],
    ids=["even", "even, searching", "a short step", "a short step, searching", "through servers, as DistBelief did"],
)
def test_lbfgs_equals_one_process(plan: str, search: str | None, samples: int) -> None:
    x, y = (part[:samples] for part in rows())
    data = TensorDataset(x, y)

    def body(world: WorkerWorld, start: Callable[[], Run]) -> Result:
        run = start()
        model, optimizer = made(search)
        model, optimizer, loader = run.join(model, optimizer, DataLoader(data, batch_size=4))
        losses = fitted(model, optimizer, loader, by_name=run.rank == 1)
        return parameters(model) | {"losses": torch.tensor(losses)}

    model, optimizer = made(search)
    wanted = fitted(model, optimizer, zip(x.split(8), y.split(8), strict=True), by_name=False)
    for result in run_served(2, plan, body):
        assert torch.allclose(result.pop("losses"), torch.tensor(wanted), rtol=1e-9)
        assert_equal(result, model)
