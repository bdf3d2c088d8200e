"""The same training twice: through `run.join`, and by hand in one process with the whole batch."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

from shoal.data.order import order
from shoal.testing.world import Result

SAMPLES = 37
WHOLE = 8
"""Samples of all workers in a step: 37 = 4 * 8 + 5, so each epoch ends with a remainder."""


def data(samples: int = SAMPLES, dtype: torch.dtype = torch.float32) -> TensorDataset:
    generator = torch.Generator().manual_seed(11)
    inputs = torch.randn(samples, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs.to(dtype), torch.randn(samples, 3, generator=generator, dtype=torch.float64).to(dtype))


def loader(size: int, dataset: TensorDataset | None = None, **options: Any) -> DataLoader[Any]:
    """What a script would write for `size` workers and the whole batch of 8."""
    return DataLoader(dataset or data(), batch_size=WHOLE // size, shuffle=True, **options)


def batches(dataset: TensorDataset, epoch: int, seed: int = 0, whole: int = WHOLE) -> list[Sequence[Tensor]]:
    """The batches of a world of one, without Shoal's loader."""
    indices = torch.tensor(order(seed, epoch, 0, len(dataset)))
    return [dataset[part] for part in indices.split(whole)]


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def adamw(model: nn.Module) -> Optimizer:
    # Adam divides by the root of the squared gradient plus eps: with the usual 1e-8, a gradient near zero turns
    # rounding of 1e-9 into a full step, in any two orders of summation. 1e-3 leaves the method, not the noise.
    return torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)


def train(
    model: nn.Module, optimizer: Optimizer, epochs: Iterable[Any], between: Callable[[], None] = lambda: None
) -> None:
    """`epochs`: iterables of batches. `between` runs between backward and step."""
    for epoch in epochs:
        for x, y in epoch:
            loss_of(model, x, y).backward()
            between()
            optimizer.step()
            optimizer.zero_grad()


def parameters(model: nn.Module, prefix: str = "") -> Result:
    return {f"{prefix}{name}": p.detach().clone() for name, p in model.named_parameters()}


def assert_equal(result: Result, model: nn.Module, bound: float = 1e-6, prefix: str = "") -> None:
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            result[f"{prefix}{name}"], parameter.detach(), atol=bound, rtol=0, msg=lambda text, n=name: f"{n}: {text}"
        )
