"""Closures of optimizers that look at the loss: all workers must see the same one.

LBFGS ends its inner iterations when the loss changes little, and a line search takes its step by it. A worker that saw
the loss of its own samples alone would make other passes, or other steps, than the rest.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from shoal.core.errors import PayloadError

Closure = Callable[[], Any]
MARK = b'{"loss"'
"""Begins what workers tell each other of a loss; those without samples let it pass."""


class SharedLoss(msgspec.Struct):
    """One worker's loss over its samples; a text, for JSON has no word for what is not finite."""

    loss: str
    samples: int


def read_loss(said: bytes) -> SharedLoss:
    """What a worker says of its loss; PayloadError for what none says."""
    told = msgspec.json.decode(said, type=SharedLoss)
    try:
        # longer than any number that `repr` writes
        float(told.loss[:40])
    except ValueError:
        raise PayloadError(f"{told.loss[:40]!r} is no loss") from None
    if not 0 < told.samples < 1 << 53:
        raise PayloadError(f"a loss over {told.samples} samples; it is over 1 or more")
    return told


def combine_losses(said: Sequence[bytes], kind: str) -> float:
    """The loss over the samples of all; whoever has none says something else."""
    told = [read_loss(word) for word in said if word.startswith(MARK)]
    if kind == "sum":
        return math.fsum(float(one.loss) for one in told) if _finite(told) else math.nan
    whole = sum(one.samples for one in told)
    return math.fsum(float(one.loss) * one.samples / whole for one in told) if _finite(told) else math.nan


def _finite(told: Sequence[SharedLoss]) -> bool:
    return all(math.isfinite(float(one.loss)) for one in told)


def looks_at_loss(optimizer: Optimizer) -> bool:
    """Whether its step may depend on what a closure returns: torch's own return it and no more, but for LBFGS."""
    return isinstance(optimizer, LBFGS) or not type(optimizer).__module__.startswith("torch.optim.")


def with_shared_loss(
    args: Sequence[Any], kwargs: Mapping[str, Any], share: Callable[[float], float]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a step whose closure returns the loss of all workers; `args` begin with the optimizer."""

    def sharing(closure: Closure) -> Closure:
        def shared() -> Any:
            loss = closure()
            if loss is None:
                return None
            common = share(float(loss.detach() if isinstance(loss, Tensor) else loss))
            return torch.full_like(loss.detach(), common) if isinstance(loss, Tensor) else common

        return shared

    if kwargs.get("closure") is not None:
        return tuple(args), {**kwargs, "closure": sharing(kwargs["closure"])}
    return (args[0], sharing(args[1]), *args[2:]), dict(kwargs)
