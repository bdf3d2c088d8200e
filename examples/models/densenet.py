"""DenseNet-BC (Huang et al. 2017) for 28x28 images: 40 layers in three blocks, as the paper has for CIFAR.

`width` is the growth rate: what every layer adds to the channels that all later ones of its block see.
"""

import torch
from torch import Tensor, nn

from .layers import NORMS, convolution, head

BLOCKS = (6, 6, 6)
"""Bottleneck layers, of two convolutions each: 1 + 3 * 12 + 2 transitions + 1 linear = 40."""


class Dense(nn.Module):
    """Norm and ReLU come first; the new channels are stacked on those that came in."""

    def __init__(self, ins: int, growth: int, norm: str) -> None:
        super().__init__()
        self.before = nn.Sequential(NORMS[norm](ins), nn.ReLU())
        self.inner = convolution(ins, 4 * growth, 1, norm=norm)
        self.last = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.last(self.inner(self.before(x)))], 1)


def densenet(width: int = 8, norm: str = "group") -> nn.Module:
    channels = 2 * width
    layers: list[nn.Module] = [nn.Conv2d(1, channels, 3, padding=1, bias=False)]
    for number, count in enumerate(BLOCKS):
        if number:  # a transition halves the channels and the image
            layers += [convolution(channels, channels // 2, 1, norm=norm), nn.AvgPool2d(2)]
            channels //= 2
        layers += [Dense(channels + i * width, width, norm) for i in range(count)]
        channels += count * width
    return nn.Sequential(*layers, NORMS[norm](channels), nn.ReLU(), head(channels))
