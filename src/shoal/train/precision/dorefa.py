"""Layers that compute in few bits: DoReFa-Net.

Zhou et al., "DoReFa-Net: Training Low Bitwidth Convolutional Neural Networks with Low Bitwidth Gradients", 2016.

    input  --clip to [0, 1], a bits-->  layer (weights of w bits)  --> output
    gradient of the output --g bits, at random--> layer, and so its weights' gradient

Rounding lets gradients straight through.

Convolutions and linear layers, except the first and the last of a model. Weights of one bit are their sign times the
layer's mean magnitude; of more, tanh evenly spaced up to the layer's largest, by which the result is multiplied again
(the paper leaves it at 1, for BatchNorm follows). Do not use it where inputs are negative: clipping takes them away.

The hooks know nothing of the run, so a copy of the model computes as the model does; the module's own `weight` is only
hidden while its forward pass runs.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shoal.core.errors import UsageError
from shoal.plan.precision import FULL, DorefaTerm
from shoal.train.precision.base import ModelPrecision
from shoal.train.precision.rounding import noise

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


class LowBits(ModelPrecision):
    """The middle layers of some models, in few bits."""

    def __init__(self, term: DorefaTerm, models: Sequence[nn.Module], seed: int, rank: int) -> None:
        layers = [layer for model in models for layer in middle(model, term)]
        self._counts = torch.zeros(len(layers), dtype=torch.int64)
        for number, layer in enumerate(layers):
            hooks = LayerHooks(term, self._counts[number : number + 1], (seed, rank, number))
            layer.register_forward_pre_hook(hooks.before)
            # also after a pass that raised: the layer must get its own weight back
            layer.register_forward_hook(hooks.after, always_call=True)

    def state(self) -> dict[str, Tensor]:
        return {"passes": self._counts}


def middle(model: nn.Module, term: DorefaTerm) -> list[nn.Module]:
    """The layers that compute in few bits: all but the first and the last, in the order the model names them."""
    layers: list[nn.Module] = [module for module in model.modules() if isinstance(module, LAYERS)]
    if len(layers) < 3:
        raise UsageError(
            f"{term}: {type(model).__name__} has {len(layers)} convolutions and linear layers, and the first and the "
            "last stay as they are; it needs 3 or more"
        )
    for layer in layers[1:-1]:
        if "weight" not in layer._parameters:
            raise UsageError(
                f"{term}: the weight of a {type(layer).__name__} is made of other parameters (a norm, pruning); "
                "take that away"
            )
    return layers[1:-1]


class LayerHooks:
    """Round one layer's call."""

    def __init__(self, term: DorefaTerm, count: Tensor, key: tuple[int, int, int]) -> None:
        self.term, self.count, self.key = term, count, key

    def before(self, layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.term.w < FULL:
            # an attribute found before the parameter of this name, which stays where it is
            vars(layer)["weight"] = weights(layer._parameters["weight"], self.term.w)
        if self.term.a == FULL:
            return inputs
        clipped = inputs[0].clamp(0, 1)
        return (straight(levels(clipped, self.term.a), clipped), *inputs[1:])

    def after(self, layer: nn.Module, _inputs: tuple[Any, ...], output: Any) -> Any:
        vars(layer).pop("weight", None)
        if self.term.g == FULL or not isinstance(output, Tensor) or not output.requires_grad:
            return output
        return CoarseGradient.apply(output, self)  # type: ignore[no-untyped-call]


class CoarseGradient(torch.autograd.Function):
    """Passes values on, and gradients of g bits back: the largest of each sample's sets its scale."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, hooks: LayerHooks) -> Tensor:
        ctx.hooks = hooks
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        hooks: LayerHooks = ctx.hooks
        uniform = noise(gradients[0], *hooks.key, int(hooks.count))
        # in place: it is a view of the counts that checkpoints keep
        hooks.count += 1
        return coarse(gradients[0], hooks.term.g, uniform), None


def coarse(gradient: Tensor, bits: int, uniform: Tensor) -> Tensor:
    """2 top (floor(n (x / (2 top) + 1/2) + uniform) / n - 1/2), n = 2^bits - 1; `top` per sample. Its mean is x."""
    steps = 2**bits - 1
    top = gradient.abs().amax(tuple(range(1, gradient.dim())), keepdim=True) if gradient.dim() > 1 else gradient.abs()
    place = torch.where(top > 0, gradient / (2 * top), 0.0) + 0.5
    level = torch.floor(place * steps + uniform).clamp_(0, steps)
    return torch.where(top > 0, 2 * top * (level / steps - 0.5), gradient)


def weights(weight: Tensor | None, bits: int) -> Tensor:
    assert weight is not None
    if bits == 1:
        return straight(torch.where(weight >= 0, 1.0, -1.0).to(weight.dtype) * weight.detach().abs().mean(), weight)
    bent = torch.tanh(weight)
    # a layer of zeros has no largest weight to divide by
    top = bent.detach().abs().max().clamp(min=torch.finfo(weight.dtype).tiny)
    place = bent / (2 * top) + 0.5
    low: Tensor = top * (2 * straight(levels(place, bits), place) - 1)
    return low


def levels(values: Tensor, bits: int) -> Tensor:
    """The nearest of 2^bits even levels in [0, 1]."""
    steps = float(2**bits - 1)
    return torch.round(values.detach() * steps) / steps


def straight(rounded: Tensor, values: Tensor) -> Tensor:
    """`rounded` to the bit, with the gradient of `values`."""
    return rounded.detach() + (values - values.detach())
