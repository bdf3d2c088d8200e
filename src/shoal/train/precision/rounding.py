"""Rounding to whole numbers at random, so that the mean is right, with noise that can be drawn again."""

import torch
from torch import Tensor

from shoal.core.seeds import mix


def noise(like: Tensor, *key: int | str) -> Tensor:
    """Numbers in [0, 1) of this shape: a pure function of `key`, on one kind of device."""
    generator = torch.Generator(like.device)
    generator.manual_seed(mix("precision", *key))
    return torch.rand(like.shape, generator=generator, device=like.device, dtype=torch.float32)


def whole(values: Tensor, uniform: Tensor | None) -> Tensor:
    """The whole number below or above, the nearer the likelier; without `uniform` the nearest, halves upward."""
    below = values.floor()
    # compared with the fraction, which is exact, for `values + uniform` would be rounded before it is cut
    up = values - below > uniform if uniform is not None else values - below >= 0.5
    return below.add_(up)
