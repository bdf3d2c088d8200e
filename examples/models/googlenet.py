"""GoogLeNet (Szegedy et al. 2015) for 28x28 images: nine inception modules, no auxiliary classifiers.

Channels are those of the paper times width / 64. The stem does not shrink the image, as it was 224x224 there.
"""

import torch
from torch import Tensor, nn

from .layers import convolution, head

# 1x1 · before 3x3, 3x3 · before 5x5, 5x5 · after the pool (the paper's table 1); "pool" halves the image
MODULES: tuple[tuple[int, ...] | str, ...] = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    "pool",
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    "pool",
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)


class Inception(nn.Module):
    """Four paths side by side, their channels stacked."""

    def __init__(self, ins: int, channels: list[int], norm: str) -> None:
        super().__init__()
        one, before3, three, before5, five, after = channels
        self.paths = nn.ModuleList([
            convolution(ins, one, 1, norm=norm),
            nn.Sequential(convolution(ins, before3, 1, norm=norm), convolution(before3, three, 3, norm=norm)),
            nn.Sequential(convolution(ins, before5, 1, norm=norm), convolution(before5, five, 5, norm=norm)),
            nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), convolution(ins, after, 1, norm=norm)),
        ])  # fmt: skip
        self.outs = one + three + five + after

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([path(x) for path in self.paths], 1)


def googlenet(width: int = 12, norm: str = "group") -> nn.Module:
    ins = 3 * width
    layers: list[nn.Module] = [
        convolution(1, width, 3, norm=norm),
        nn.MaxPool2d(2),
        convolution(width, ins, 3, norm=norm),
    ]
    for row in MODULES:
        if isinstance(row, str):
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        else:
            layers.append(module := Inception(ins, [max(1, n * width // 64) for n in row], norm))
            ins = module.outs
    return nn.Sequential(*layers, head(ins))
