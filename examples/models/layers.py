"""What several of the image networks share: a convolution with its norm, and the choice of that norm.

The default is GroupNorm, which looks at one sample at a time: p workers with a part of the batch each then compute
exactly what one process computes with the whole. BatchNorm takes its mean over the local part, so the same plan gives
slightly different numbers; `norm="batch"` has it.
"""

from math import gcd

from torch import nn


def group_norm(channels: int) -> nn.Module:
    """Up to 8 groups of at least two channels."""
    return nn.GroupNorm(max(1, gcd(channels, 16) // 2), channels)


NORMS = {"group": group_norm, "batch": nn.BatchNorm2d}
VECTOR_NORMS = {"group": group_norm, "batch": nn.BatchNorm1d}
"""Of images, and of vectors."""


def convolution(ins: int, outs: int, kernel: int, stride: int = 1, norm: str = "group") -> nn.Sequential:
    """Convolution, norm, ReLU; the image keeps its size but for the stride."""
    layer = nn.Conv2d(ins, outs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(layer, NORMS[norm](outs), nn.ReLU())


def head(channels: int, classes: int = 10) -> nn.Sequential:
    """The mean over the image, then one linear layer."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
