"""A generative adversarial network (Goodfellow et al. 2014): a maker of images and a critic that knows them from real.

    critic learns from:  real images -> "real",  what the maker makes -> "made"
    maker learns from:   what the critic says of it, wished to be "real"

The noise comes with the sample and is not drawn in the step: so any number of workers sees what one process would.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NOISE = 16


class GAN(nn.Module):
    """Called, it makes images from noise."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.maker = nn.Sequential(
            nn.Linear(NOISE, width), nn.LeakyReLU(0.2), nn.Linear(width, 2 * width), nn.LeakyReLU(0.2),
            nn.Linear(2 * width, 784), nn.Unflatten(1, (1, 28, 28)),
        )  # fmt: skip
        self.critic = nn.Sequential(
            nn.Flatten(), nn.Linear(784, 2 * width), nn.LeakyReLU(0.2), nn.Linear(2 * width, 1), nn.Flatten(0)
        )

    def forward(self, noise: Tensor) -> Tensor:
        return self.maker(noise)


def critic_loss(model: GAN, noise: Tensor, real: Tensor) -> Tensor:
    with torch.no_grad():  # the maker does not learn here
        made = model.maker(noise)
    return F.softplus(-model.critic(real)).mean() + F.softplus(model.critic(made)).mean()


def maker_loss(model: GAN, noise: Tensor, _real: Tensor) -> Tensor:
    return F.softplus(-model.critic(model.maker(noise))).mean()
