"""Momentum correction, local clipping and factor masking: momentum that works although most of a gradient waits.

Lin et al., "Deep Gradient Compression", ICLR 2018, section 3: each worker keeps the velocity itself and accumulates
velocities instead of gradients; what is sent leaves the velocity too (masking), so that stale momentum does not push a
parameter after its update; gradients are clipped before they are accumulated, layer by layer, at clip / sqrt(workers).

    velocity = momentum * velocity + clip(gradient)     residual += velocity     send the largest of the residual
    residual, velocity = 0 where sent

Do not use it with an optimizer that has momentum of its own: it would be applied twice.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.wire.codec import GradientCodec, State, refuse_non_finite
from shoal.wire.codecs.sparse import SparseCodec
from shoal.wire.encode_context import EncodeContext
from shoal.wire.layout import FlatLayout
from shoal.wire.selection import VelocityState
from shoal.wire.wrappers.feedback import RESIDUAL

VELOCITY = "velocity"


@dataclass(frozen=True)
class MomentumCorrection(GradientCodec):
    """A sparsifier that sends velocities."""

    fixed_size = False
    codec: SparseCodec
    momentum: float = 0.9
    clip: float = 0.0
    """Largest norm of a layer's gradient; 0 does not clip."""
    masking: bool = True

    @property
    def code(self) -> int:  # type: ignore[override]
        return self.codec.code

    def init_state(self, layout: FlatLayout) -> State:
        return {VELOCITY: torch.zeros(layout.numel), RESIDUAL: torch.zeros(layout.numel)}

    def max_bytes(self, layout: FlatLayout) -> int:
        return self.codec.max_bytes(layout)

    def get_ratio(self) -> float:
        return self.codec.ratio

    def with_ratio(self, ratio: float) -> "MomentumCorrection":
        return replace(self, codec=self.codec.with_ratio(ratio))

    def encode_into(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        context: EncodeContext,
        out: Tensor,
        residual: Tensor | None = None,
    ) -> int:
        if self.clip:
            values = clipped(values, layout, self.clip)
        push = VelocityState(state[VELOCITY], self.momentum, self.masking)
        return self.codec.encode_velocity(values, layout, context, out, state[RESIDUAL], push)

    def decode_add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        self.codec.decode_add(payload, layout, out)


def clipped(values: Tensor, layout: FlatLayout, clip: float) -> Tensor:
    """A copy in which no layer's norm is above `clip`."""
    refuse_non_finite(values, layout)
    values = values.clone()
    for part in layout.parts:
        layer = values[part.offset : part.end]
        # 1e-30: a layer of zeros has no norm to divide by.
        layer.mul_(min(1.0, clip / max(float(torch.linalg.vector_norm(layer)), 1e-30)))
    return values
