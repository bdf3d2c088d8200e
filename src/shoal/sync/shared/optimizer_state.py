"""What workers share of an optimizer's state, before its first step; torch.optim makes it in that step, for one.

To be shared it must be there before, and the same for all. So this is a closed list; every step of these optimizers
writes its state in place. What races do to it:

    SGD       none without momentum. A buffer of momentum mixes gradients of all workers; an element that two workers
              write at once may lose one gradient, and with p workers it decays p times as often per sample
    Adagrad   sums of squares may miss a square, so a rate falls a little later than it would

Adam's and AdamW's state stays with each worker. A step divides the average of the gradients by the root of that of
their squares, and writes one after the other: between the two, another worker would find a gradient in the first and
not in the second, and divide by almost nothing where it has no gradient itself. A parameter then moves by thousands of
learning rates.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from shoal.core.errors import UsageError

Options = Mapping[str, Any]
"""Of a parameter group."""


def _sgd(options: Options, parameter: Tensor) -> dict[str, Tensor]:
    if not options["momentum"]:
        return {}
    if options["dampening"]:
        # torch does not dampen the first gradient of a parameter, which a buffer of zeros would
        raise UsageError(
            f"SGD(dampening={options['dampening']}): the first step of a shared momentum is not dampened as torch's "
            "is; write dampening=0"
        )
    return {"momentum_buffer": _zeros(parameter)}


def _adagrad(options: Options, parameter: Tensor) -> dict[str, Tensor]:
    return {"step": _count(), "sum": _zeros(parameter).fill_(options["initial_accumulator_value"])}


def _adam(options: Options, parameter: Tensor) -> dict[str, Tensor]:
    return {}


SHARED: dict[type[Optimizer], Callable[[Options, Tensor], dict[str, Tensor]]] = {
    SGD: _sgd,
    Adagrad: _adagrad,
    Adam: _adam,
    AdamW: _adam,
}
"""Optimizer -> what it keeps of a parameter, and shares, before its first step."""


def make_initial_state(optimizer: Optimizer, options: Options, parameter: Tensor) -> dict[str, Tensor]:
    """Return the shared state of a parameter before the first step; UsageError for an optimizer that is not known."""
    kind = next((kind for kind in type(optimizer).__mro__ if kind in SHARED), None)
    if kind is None:
        names = ", ".join(kind.__name__ for kind in SHARED)
        raise UsageError(
            f"'shared' does not know what races do to {type(optimizer).__name__}; use one of {names}, or another plan"
        )
    return SHARED[kind](options, parameter)


def _zeros(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter, requires_grad=False)


def _count() -> Tensor:
    return torch.tensor(0.0, dtype=torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32)
