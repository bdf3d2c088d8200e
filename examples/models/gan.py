"""A generative adversarial network (Goodfellow et al. 2014): a maker of images and a critic that knows them from real.

    critic learns from:  real images -> "real",  what the maker makes -> "made"
    maker learns from:   what the critic says of the same images, wished to be "real"

Images are made once a batch: the maker's forward pass waits for its backward pass while the critic learns, as in most
GANs. The noise comes with the sample and is not drawn in the step: so any number of workers sees what one process
would, as long as norms look at one sample at a time (layers.py).
"""

import torch.nn.functional as F
from torch import Tensor, nn

from .layers import VECTOR_NORMS

NOISE = 16


class GAN(nn.Module):
    """Called, it makes images from noise."""

    def __init__(self, width: int = 64, norm: str = "group") -> None:
        super().__init__()
        norm_of = VECTOR_NORMS[norm]
        self.maker = nn.Sequential(
            nn.Linear(NOISE, width), nn.LeakyReLU(0.2), nn.Linear(width, 2 * width), norm_of(2 * width),
            nn.LeakyReLU(0.2), nn.Linear(2 * width, 784), nn.Unflatten(1, (1, 28, 28)),
        )  # fmt: skip
        self.critic = nn.Sequential(
            nn.Flatten(), nn.Linear(784, 2 * width), norm_of(2 * width), nn.LeakyReLU(0.2),
            nn.Linear(2 * width, 1), nn.Flatten(0),
        )  # fmt: skip
        self.made: Tensor | None = None
        """What the critic has just learnt from, until the maker learns from it too."""

    def forward(self, noise: Tensor) -> Tensor:
        return self.maker(noise)


def critic_loss(model: GAN, noise: Tensor, real: Tensor) -> Tensor:
    model.made = model.maker(noise)
    made = model.made.detach()  # the maker does not learn here
    return F.softplus(-model.critic(real)).mean() + F.softplus(model.critic(made)).mean()


def maker_loss(model: GAN, noise: Tensor, _real: Tensor) -> Tensor:
    made, model.made = model.made, None
    return F.softplus(-model.critic(model.maker(noise) if made is None else made)).mean()
