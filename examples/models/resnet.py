"""ResNet (He et al. 2016) for 28x28 images: the depths of the paper, with a stem of 3x3 that does not shrink."""

import torch
from torch import Tensor, nn

from .layers import NORMS, convolution, head

DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Depth -> blocks in each of the four stages; from 50 on, blocks are bottlenecks."""


class Block(nn.Module):
    """`body(x) + x`, where x is projected if its shape must change."""

    def __init__(self, body: nn.Module, ins: int, outs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.body, self.skip = body, nn.Identity()
        if stride > 1 or ins != outs:
            self.skip = nn.Sequential(nn.Conv2d(ins, outs, 1, stride, bias=False), NORMS[norm](outs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.skip(x))


def basic(ins: int, width: int, stride: int, norm: str) -> Block:
    last = nn.Conv2d(width, width, 3, padding=1, bias=False)
    body = nn.Sequential(convolution(ins, width, 3, stride, norm), last, NORMS[norm](width))
    return Block(body, ins, width, stride, norm)


def bottleneck(ins: int, width: int, stride: int, norm: str) -> Block:
    """1x1 down, 3x3, 1x1 up to four times the width."""
    outs = 4 * width
    last = nn.Conv2d(width, outs, 1, bias=False)
    inner = (convolution(ins, width, 1, norm=norm), convolution(width, width, 3, stride, norm))
    return Block(nn.Sequential(*inner, last, NORMS[norm](outs)), ins, outs, stride, norm)


def resnet(depth: int, width: int, norm: str = "group") -> nn.Module:
    """`width` is that of the first stage (64 in the paper); every later one has twice as much."""
    block, grows = (basic, 1) if depth < 50 else (bottleneck, 4)
    layers: list[nn.Module] = [convolution(1, width, 3, norm=norm)]
    ins = width
    for stage, blocks in enumerate(DEPTHS[depth]):
        for number in range(blocks):
            stride = 2 if stage and not number else 1
            layers.append(block(ins, width << stage, stride, norm))
            ins = (width << stage) * grows
    return nn.Sequential(*layers, head(ins))


def resnet18(width: int = 16, norm: str = "group") -> nn.Module:
    return resnet(18, width, norm)


def resnet50(width: int = 8, norm: str = "group") -> nn.Module:
    return resnet(50, width, norm)
