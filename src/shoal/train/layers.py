"""How long each layer's backward pass and exchange take, measured in some steps only.

    forward ends | backward of the last layer | … | backward of the first layer |        gaps between gradients
                                     | bucket full -> mean back |                        shared out by bytes

A hook on every parameter costs microseconds each, so they are there in the first steps and then four times a second.
On an accelerator the gaps tell when work was handed over, not when it was done.
"""

from functools import partial

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from shoal.core.clock import now
from shoal.core.events import SECONDS
from shoal.sync.cost import ExchangeCost
from shoal.train.members import JoinedMembers

SAMPLE_SECONDS = 0.25
"""Between two measured steps, once the first few are done."""
FIRST_SAMPLES = 3
NORM_ELEMENTS = 4096
"""Of a gradient, at least so many tell its norm, where it has as many."""


class LayerTimer:
    """Measures the layers of what one `join` joined."""

    def __init__(self, members: JoinedMembers, spent: ExchangeCost) -> None:
        self.parameters, self.spent = members.parameters, spent
        self.layers = [layer_of(name) for name in members.names]
        self._taken = 0
        self._first: list[float] = []
        self._backward = [0.0] * len(members.names)
        self._aggregation = [0.0] * len(members.names)
        self._mark = self._spent_at_mark = self._sampled_at = 0.0
        self._seen = False
        self._norms: dict[int, Tensor] = {}
        self._handles: list[RemovableHandle] = []
        self._arm()

    def forward_ended(self, time: float) -> None:
        """The first gradient's time counts from here."""
        if self._handles:
            self._mark, self._spent_at_mark = time, self.spent.encode + self.spent.wait

    def step_ended(self, time: float) -> None:
        """Take in what was measured, and measure the next step if it is time to."""
        if self._handles and self._seen:
            self._harvest(time)
        if not self._handles and (self._taken < FIRST_SAMPLES or time - self._sampled_at > SAMPLE_SECONDS):
            self._arm()

    @property
    def samples(self) -> int:
        """Steps that the means are of."""
        return max(1, self._taken - 1) if self._taken else 0

    def take_norms(self) -> dict[str, float]:
        """Norm of the gradient by layer, of the first step that was measured since this was last asked."""
        squares: dict[str, float] = {}
        for index, norm in self._norms.items():
            squares[self.layers[index]] = squares.get(self.layers[index], 0.0) + norm.item() ** 2
        self._norms = {}
        return {layer: float(f"{square**0.5:.4g}") for layer, square in squares.items()}

    def means(self) -> tuple[dict[str, float], dict[str, float]]:
        """Mean seconds per measured step, by layer: backward, aggregation."""
        return self._by_layer(self._backward), self._by_layer(self._aggregation)

    def _arm(self) -> None:
        self._seen, self._mark = False, 0.0
        self.spent.parts = ()
        # torch offers this hook for leaves alone
        self._handles = [
            parameter.register_post_accumulate_grad_hook(partial(self._arrived, index))  # type: ignore[no-untyped-call]
            for index, parameter in enumerate(self.parameters)
            if parameter.requires_grad and parameter.is_leaf
        ]

    def _arrived(self, index: int, parameter: Tensor) -> None:
        time, spent = now(), self.spent.encode + self.spent.wait
        if self._mark:
            # an exchange inside the pass is not this layer's computing
            self._backward[index] += max(0.0, time - self._mark - (spent - self._spent_at_mark))
        if index not in self._norms and parameter.grad is not None and not parameter.grad.is_sparse:
            self._norms[index] = estimate_norm(parameter.grad)
            time = now()  # measuring is no part of the next layer's pass
        self._mark, self._spent_at_mark, self._seen = time, spent, True

    def _harvest(self, time: float) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._share_out()
        self._taken += 1
        self._sampled_at = time
        if self._taken == 1:
            self._first = [*self._backward, *self._aggregation]
        elif self._taken == 2:
            self._forget_first()

    def _forget_first(self) -> None:
        """The very first step also allocates and loads code: it counts only as long as there is no other."""
        later = [a - b for a, b in zip([*self._backward, *self._aggregation], self._first, strict=True)]
        self._backward, self._aggregation = later[: len(self.layers)], later[len(self.layers) :]

    def _share_out(self) -> None:
        for part, ready, done in zip(self.spent.parts, self.spent.ready, self.spent.done, strict=False):
            own = {i: self.parameters[i].nbytes for i in part if i < len(self.parameters)}
            whole = sum(own.values()) or 1
            for index, size in own.items():
                self._aggregation[index] += max(0.0, done - ready) * size / whole

    def _by_layer(self, seconds: list[float]) -> dict[str, float]:
        sums = dict.fromkeys(self.layers, 0.0)
        for layer, value in zip(self.layers, seconds, strict=True):
            sums[layer] += value
        return {layer: round(value / max(1, self.samples), SECONDS) for layer, value in sums.items()}


def estimate_norm(gradient: Tensor) -> Tensor:
    """The norm as some thousand elements at equal distances tell it: tens of microseconds for any size."""
    flat = gradient.detach().reshape(-1) if gradient.is_contiguous() else gradient.detach().flatten()
    stride = max(1, flat.numel() // NORM_ELEMENTS)
    # each element that is looked at stands for `stride` of them
    norm: Tensor = torch.linalg.vector_norm(flat[::stride].float()) * stride**0.5
    return norm


def layer_of(parameter: str) -> str:
    """The module that owns a parameter; a parameter of the model itself stands for itself."""
    return parameter.rpartition(".")[0] or parameter
