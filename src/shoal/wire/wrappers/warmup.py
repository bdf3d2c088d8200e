"""Warm-up: a sparsifier begins with a quarter of the elements and tightens, step by step, to its ratio.

Lin et al., "Deep Gradient Compression", ICLR 2018, section 3.3: in the first epochs gradients change fast and many
must be sent; the ratio falls exponentially from 25 %. Do not use it in short runs: the first steps send many bytes.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from shoal.wire.codec import GradientCodec, State
from shoal.wire.encode_context import EncodeContext
from shoal.wire.layout import FlatLayout

FIRST = 0.25


@dataclass(frozen=True)
class RatioWarmUp(GradientCodec):
    """A codec whose ratio at step t < `steps` is FIRST * (ratio / FIRST) ** (t / steps)."""

    fixed_size = False
    codec: GradientCodec
    """A sparsifier, perhaps with feedback or momentum correction around it."""
    ratio: float
    steps: int

    @property
    def code(self) -> int:  # type: ignore[override]
        return self.codec.code

    def init_state(self, layout: FlatLayout) -> State:
        return self.codec.init_state(layout)

    def get_ratio(self) -> float:
        return self.ratio

    def with_ratio(self, ratio: float) -> "RatioWarmUp":
        return replace(self, codec=self.codec.with_ratio(ratio), ratio=ratio)

    def ratio_at(self, step: int) -> float:
        """Return the ratio of one step."""
        first = max(FIRST, self.ratio)
        return self.ratio if step >= self.steps else first * (self.ratio / first) ** (step / self.steps)

    def _now(self, step: int) -> GradientCodec:
        return self.codec.with_ratio(self.ratio_at(step))

    def name_state(self, state: State, layout: FlatLayout) -> State:
        return self.codec.name_state(state, layout)

    def max_bytes(self, layout: FlatLayout) -> int:
        return max(self._now(0).max_bytes(layout), self.codec.max_bytes(layout))

    def encode_into(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        context: EncodeContext,
        out: Tensor,
        residual: Tensor | None = None,
    ) -> int:
        return self._now(context.step).encode_into(values, layout, state, context, out, residual)

    def decode_add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        # A peer may be a step ahead or behind, so any count up to that of the first step is accepted.
        self._now(0).decode_add(payload, layout, out)
