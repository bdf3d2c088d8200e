"""What all workers agreed on at the end of the last round, and what the outer optimizer remembers of it.

Under an elastic outer optimizer this is a centre, and replicas differ from it; else it is what the next round's steps
begin from. It is not kept in checkpoints, because between two rounds it is the parameters; the momentum is.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.sync.state import State, StateTensor
from shoal.sync.synchronizer import Part

MOMENTUM = "outer."
"""Before the name of a parameter: the outer optimizer's momentum, in a state."""


class RoundAnchor:
    """Of the parameters of one part."""

    def __init__(self, names: Sequence[str] = (), parameters: Sequence[Tensor] = (), remembers: bool = False) -> None:
        """`remembers`: whether the outer optimizer keeps a momentum for each."""
        self._names, self._parameters = names, parameters
        self.values: list[Tensor] = []
        self.is_held = False
        """Whether `values` are those of the round under way."""
        self.momenta = [torch.zeros_like(p, requires_grad=False) for p in parameters] if remembers else []
        self._travelled: set[int] = set()
        """Places of parameters that were trained when the round began."""

    def remember(self) -> None:
        """A round begins, from equal parameters."""
        if not self.values:
            self.values = [torch.empty_like(p, requires_grad=False) for p in self._parameters]
        copy_values(self._parameters, self.values)
        self.is_held = True
        self.note_trained()

    def write_back(self) -> None:
        """Make the parameters what was agreed on."""
        copy_values(self.values, self._parameters)

    def note_trained(self) -> None:
        self._travelled = self._trained()

    @property
    def travelling(self) -> set[int]:
        """Places of what has been trained at the begin of the round, or is now: the same on all workers."""
        return self._travelled | self._trained()

    def _trained(self) -> set[int]:
        return {place for place, parameter in enumerate(self._parameters) if parameter.requires_grad}

    def changes(self, places: Sequence[int], bad: bool) -> list[Tensor | None]:
        """What this worker's steps came to; None for what is frozen or of another turn, on all workers alike."""
        travels = self.travelling & set(places)
        pairs = zip(self._parameters, self.values, strict=True)
        # a change that does not count only says that there is one
        return [(a if bad else p.detach() - a) if n in travels else None for n, (p, a) in enumerate(pairs)]

    def momentum(self, place: int) -> Tensor | None:
        return self.momenta[place] if self.momenta else None

    def state(self) -> dict[str, StateTensor]:
        momenta = zip(self._names, self.momenta, strict=False)  # there may be none
        return {f"{MOMENTUM}{name}": StateTensor(tensor, "equal") for name, tensor in momenta}

    def load_state(self, state: State) -> None:
        for name, momentum in zip(self._names, self.momenta, strict=False):
            saved = state.get(f"{MOMENTUM}{name}")
            if saved is not None and saved.values.shape == momentum.shape:
                momentum.copy_(saved.values)


def trainable(part: Part) -> tuple[list[str], list[Tensor]]:
    """Names and tensors of what an optimizer may change: floating-point parameters."""
    found = [(n, p) for n, p in zip(part.names, part.parameters, strict=True) if p.is_floating_point()]
    return [name for name, _ in found], [parameter for _, parameter in found]


def copy_values(values: Sequence[Tensor], into: Sequence[Tensor]) -> None:
    for value, target in zip(values, into, strict=True):
        target.detach().copy_(value.detach())


def is_finite(tensor: Tensor) -> bool:
    """One pass, and a second only if the sum overflows."""
    found = tensor.detach()
    # sums of half precision overflow soon, so they are made in float32
    total = found.sum(dtype=torch.float32) if found.element_size() == 2 else found.sum()
    return bool(total.isfinite()) or bool(found.isfinite().all())
