"""A velocity that gradients push, for codecs that send what it adds up to instead of the gradients."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class VelocityState:
    """velocity = momentum * velocity + gradient; with masking, none is left where something was sent."""

    velocity: Tensor
    momentum: float
    masking: bool

    def gain(self, values: Tensor) -> Tensor:
        """The velocity after `values`; rounded twice, as the kernel does."""
        return self.velocity.mul_(self.momentum).add_(values)

    def lose(self, places: Tensor | slice = slice(None)) -> None:
        if self.masking:
            self.velocity[places] = 0.0
