"""Momentum correction, local clipping and factor masking: momentum that works although most of a gradient waits.

Lin et al., "Deep Gradient Compression", ICLR 2018, section 3: each worker keeps the velocity itself and accumulates
velocities instead of gradients; what is sent leaves the velocity too (masking), so that stale momentum does not push a
parameter after its update; gradients are clipped before they are accumulated, layer by layer, at clip / sqrt(workers).

    velocity = momentum * velocity + clip(gradient)     residual += velocity     send the largest of the residual
    residual, velocity = 0 where sent

Do not use it with an optimizer that has momentum of its own: it would be applied twice.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.wire.codec import Codec, State, refuse_non_finite
from shoal.wire.codecs.sparse import Sparse
from shoal.wire.layout import Layout
from shoal.wire.moment import Moment
from shoal.wire.push import Push
from shoal.wire.wrappers.feedback import RESIDUAL

VELOCITY = "velocity"


@dataclass(frozen=True)
class Momentum(Codec):
    """A sparsifier that sends velocities."""

    exact = False
    codec: Sparse
    momentum: float = 0.9
    clip: float = 0.0
    """Largest norm of a layer's gradient; 0 does not clip."""
    masking: bool = True

    @property
    def code(self) -> int:  # type: ignore[override]
        return self.codec.code

    def start(self, layout: Layout) -> State:
        return {VELOCITY: torch.zeros(layout.numel), RESIDUAL: torch.zeros(layout.numel)}

    def bound(self, layout: Layout) -> int:
        return self.codec.bound(layout)

    def at(self, ratio: float) -> "Momentum":
        """The same with another ratio, for a warm-up."""
        return Momentum(self.codec.at(ratio), self.momentum, self.clip, self.masking)

    def pack(
        self, values: Tensor, layout: Layout, state: State, moment: Moment, out: Tensor, rest: Tensor | None = None
    ) -> int:
        if self.clip:
            values = clipped(values, layout, self.clip)
        push = Push(state[VELOCITY], self.momentum, self.masking)
        return self.codec.send(values, layout, moment, out, state[RESIDUAL], push)

    def add(self, payload: Tensor, layout: Layout, out: Tensor) -> None:
        self.codec.add(payload, layout, out)


def clipped(values: Tensor, layout: Layout, clip: float) -> Tensor:
    """A copy in which no layer's norm is above `clip`."""
    refuse_non_finite(values, layout)
    values = values.clone()
    for part in layout.parts:
        layer = values[part.offset : part.end]
        layer.mul_(min(1.0, clip / max(float(torch.linalg.vector_norm(layer)), 1e-30)))
    return values
