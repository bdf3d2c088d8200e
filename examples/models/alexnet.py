"""AlexNet (Krizhevsky et al. 2012) for 28x28 images: five convolutions, three linear layers.

Channels stand to each other as in the one-tower network of 2014; 64 would be its full width. Kernels of 11 and 5 and
the first stride would leave nothing of so small an image, so all kernels are 3.
"""

from itertools import pairwise

from torch import nn


def alexnet(width: int = 16, dropout: float = 0.0) -> nn.Module:
    """`dropout` was 0.5; 0 is the default, for workers draw different masks than one process would."""
    channels = [1, width, 3 * width, 6 * width, 4 * width, 4 * width]
    layers: list[nn.Module] = []
    for number, (ins, outs) in enumerate(pairwise(channels), 1):
        layers += [nn.Conv2d(ins, outs, 3, padding=1), nn.ReLU()]
        if number in (1, 2, 5):  # 28 -> 14 -> 7 -> 3
            layers.append(nn.MaxPool2d(2))
    hidden = 16 * width
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(4 * width * 9, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )
