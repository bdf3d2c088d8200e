"""SVRG in few bits, on a grid that closes in on the solution: HALP.

De Sa et al., "High-Accuracy Low-Precision Training", 2018. Low-precision SGD stops where its grid is too coarse or its
gradients too noisy. Both shrink here with the distance to the solution:

    anchor steps    the optimizer's step does nothing; g = mean of the gradients at the anchor w0
    then            s = |g| / (mu (2^(bits-1) - 1)): the solution lies within |g| / mu of w0
    inner steps     gradient = grad f_i(w) - grad f_i(w0) + g,   w = w0 + s * round((w - w0) / s)      rounded at random
    then            w0 = w, and again

The script's loss at w0, on the same samples, is evaluated through a twin of the model's output (twin.py). What travels
is the difference of the two gradients, which shrinks too. Do not use it for deep networks without a reason: the second
pass doubles the computing. With momentum or Adam it is no longer the method of the paper.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from shoal.core.errors import ShoalError, UsageError
from shoal.plan.precision import HalpTerm
from shoal.train.forward import StayingHook, add_hook, add_pre_hook
from shoal.train.precision.base import ModelPrecision
from shoal.train.precision.rounding import noise, whole
from shoal.train.precision.twin import pair


class BitCentred(ModelPrecision):
    """One model and its optimizer. `samples` says how many the step's gradient is a mean of."""

    def __init__(
        self, term: HalpTerm, model: nn.Module, optimizer: Optimizer, seed: int, samples: Callable[[], int]
    ) -> None:
        self.term, self.model, self.seed, self._samples = term, model, seed, samples
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._names = _names(term, model, self._parameters)
        self._anchor = [p.detach().clone().requires_grad_() for p in self._parameters]
        self._full = [torch.zeros_like(p) for p in self._parameters]
        self._steps = torch.zeros((), dtype=torch.int64)
        self._seen = torch.zeros((), dtype=torch.float64)
        self._scale = torch.zeros((), dtype=torch.float64)
        self._there: list[Tensor | None] | None = None
        """The anchor's gradients in the pass that runs."""
        self._busy = False
        self._random: Tensor | None = None
        self._listen(optimizer)

    def _listen(self, optimizer: Optimizer) -> None:
        add_pre_hook(self.model, StayingHook(self._called))
        add_hook(self.model, StayingHook(self._returned), with_kwargs=True)
        for index, parameter in enumerate(self._parameters):
            trained = parameter.requires_grad  # a frozen one may be thawed at any time
            parameter.requires_grad_(True)
            parameter.register_hook(lambda gradient, index=index: self._corrected(gradient, index))
            parameter.requires_grad_(trained)
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    def state(self) -> dict[str, Tensor]:
        tensors = {"steps": self._steps, "seen": self._seen, "scale": self._scale}
        for name, anchor, full in zip(self._names, self._anchor, self._full, strict=True):
            tensors |= {f"anchor.{name}": anchor.detach(), f"gradient.{name}": full}
        return tensors

    @property
    def inner(self) -> bool:
        """Whether weights move now; otherwise the anchor's gradient is measured."""
        return int(self._steps) % (self.term.anchor + self.term.inner) >= self.term.anchor

    # the second evaluation

    def _called(self, *_: Any) -> None:
        if self.inner and not self._busy:
            self._random = torch.get_rng_state()

    def _returned(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if self._busy or not (self.inner and model.training and torch.is_grad_enabled()):
            return output
        assert self._random is not None
        weights = dict(zip(self._names, self._anchor, strict=True))
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}  # counted once, here
        after = torch.get_rng_state()
        torch.set_rng_state(self._random)  # dropout takes the same units away
        # the second evaluation comes through these hooks too
        self._busy = True
        try:
            there = functional_call(model, weights | buffers, args, kwargs)
        finally:
            self._busy = False
            # the script's random stream goes on as after one evaluation
            torch.set_rng_state(after)
        return pair(output, there, self._backward)

    @contextmanager
    def _backward(self, loss: Tensor, gradient: Any, retain: bool) -> Iterator[None]:
        self._there = list(torch.autograd.grad(loss, self._anchor, gradient, retain, allow_unused=True))
        try:
            yield
        finally:
            self._there = None

    def _corrected(self, gradient: Tensor, index: int) -> Tensor:
        if not self.inner:
            return gradient
        if self._there is None:
            raise ShoalError(
                f"{self.term}: a backward pass did not begin with backward() of a loss made of the joined model's "
                "output, so the anchor's gradient is not known; call loss.backward(), or take another plan"
            )
        there = self._there[index]
        return gradient if there is None else gradient - there

    # the update

    @torch.no_grad()
    def _before(self, *_: Any) -> None:
        present = [i for i, p in enumerate(self._parameters) if p.grad is not None]
        if self.inner:
            for i in present:
                self._parameters[i].grad += self._full[i]
            return
        samples = self._samples() if present else 0
        for i in present:
            self._full[i].add_(self._parameters[i].grad, alpha=samples)
            # without gradients the optimizer's step changes nothing
            self._parameters[i].grad = None
        self._seen += samples

    @torch.no_grad()
    def _after(self, *_: Any) -> None:
        if self.inner:
            for i, (parameter, anchor) in enumerate(zip(self._parameters, self._anchor, strict=True)):
                parameter.copy_(anchor + self._rounded(parameter - anchor, i))
        self._steps += 1
        place = int(self._steps) % (self.term.anchor + self.term.inner)
        if place == self.term.anchor:
            self._centre()
        elif place == 0:
            self._seen.zero_()
            torch._foreach_zero_(self._full)

    def _centre(self) -> None:
        """The anchor's gradient is complete: the weights may move round it, on a grid of its size."""
        for parameter, anchor, full in zip(self._parameters, self._anchor, self._full, strict=True):
            anchor.copy_(parameter)
            # without a sample the sums are zero, and stay so
            full /= float(self._seen) or 1.0
        norm = torch.linalg.vector_norm(torch.stack([full.double().norm() for full in self._full]))
        self._scale.copy_(norm / (self.term.mu * (2 ** (self.term.bits - 1) - 1)))

    def _rounded(self, moved: Tensor, index: int) -> Tensor:
        scale, most = float(self._scale), 2 ** (self.term.bits - 1) - 1
        if not scale:
            return torch.zeros_like(moved)
        levels = moved / scale
        return whole(levels, noise(levels, self.seed, int(self._steps), index)).clamp_(-most, most).mul_(scale)


def _names(term: HalpTerm, model: nn.Module, parameters: Sequence[Tensor]) -> list[str]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    if any(id(parameter) not in names for parameter in parameters):
        raise UsageError(f"{term}: the optimizer trains a parameter that is not in the model; put it there")
    return [names[id(parameter)] for parameter in parameters]
