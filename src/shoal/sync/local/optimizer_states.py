"""The state of the workers' own optimizers, averaged at a round with the parameters: `state=average`.

Tensors of an optimizer's state that have their parameter's shape (momentum, moving averages) become the mean of all
workers, by the weights of the round; counts of steps stay each worker's own. Su & Chen, "Experiments on parallel
training of deep neural network using model averaging", 2015, and Deeplearning4j average updater state in this way. Do
not use it where bytes are dear: Adam's two averages make a round three times as large, and travel without a codec.
"""

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from shoal.core.errors import UsageError


class OptimizerStates:
    """Of the optimizers of one part, which need not have made a step yet."""

    def __init__(self, optimizers: Sequence[Optimizer], parameters: Sequence[Tensor]) -> None:
        places = {id(parameter): parameter for parameter in parameters}
        self._slots: list[tuple[Optimizer, Tensor, str]] = []
        for optimizer in optimizers:
            names = find_state_names(optimizer)
            owned = [p for group in optimizer.param_groups for p in group["params"] if id(p) in places]
            self._slots += [(optimizer, parameter, name) for parameter in owned for name in names]

    @property
    def like(self) -> list[Tensor]:
        """A tensor of the shape of each."""
        return [parameter.detach() for _, parameter, _ in self._slots]

    def offer(self) -> list[Tensor | None]:
        """What this worker has; zeros where its optimizer has made no step. None for what is frozen on all workers."""
        return [self._find(slot) if slot[1].requires_grad else None for slot in self._slots]

    def _find(self, slot: tuple[Optimizer, Tensor, str]) -> Tensor:
        optimizer, parameter, name = slot
        found = optimizer.state.get(parameter, {}).get(name)
        return found if isinstance(found, Tensor) else torch.zeros_like(parameter, requires_grad=False)

    def take(self, means: Sequence[Tensor | None]) -> None:
        """Go on with the mean of all, where this worker's optimizer has a state."""
        for (optimizer, parameter, name), mean in zip(self._slots, means, strict=True):
            found = optimizer.state.get(parameter, {}).get(name)
            if mean is not None and isinstance(found, Tensor):
                found.copy_(mean)


def find_state_names(optimizer: Optimizer) -> list[str]:
    """Return what an optimizer remembers of every element of a parameter, by making a step of one like it."""
    group = optimizer.param_groups[0]
    # schedulers put more into a group than the optimizer's constructor takes
    known = inspect.signature(type(optimizer)).parameters
    sample = torch.zeros(1, requires_grad=True)
    sample.grad = torch.zeros(1)
    try:
        twin = type(optimizer)(
            [sample], **{name: value for name, value in group.items() if name in known and name != "params"}
        )
        twin.step()
    except Exception as error:  # noqa: BLE001  (whatever another package's optimizer raises, it cannot be made)
        raise UsageError(
            f"state=average: what {type(optimizer).__name__} remembers cannot be found out ({error}); "
            "use an optimizer of torch.optim, or write state=keep"
        ) from None
    # a count of steps has no dimension in torch.optim, so it differs in shape and stays each worker's own
    state = twin.state[sample]
    return sorted(
        n for n, t in state.items() if isinstance(t, Tensor) and t.shape == sample.shape and t.is_floating_point()
    )
