"""Warm-up: a sparsifier begins with a quarter of the elements and tightens, step by step, to its ratio.

Lin et al., "Deep Gradient Compression", ICLR 2018, section 3.3: in the first epochs gradients change fast and many
must be sent; the ratio falls exponentially from 25 %. Do not use it in short runs: the first steps send many bytes.
"""

from dataclasses import dataclass

from torch import Tensor

from shoal.wire.codec import GradientCodec, State
from shoal.wire.codecs.sparse import SparseCodec
from shoal.wire.layout import FlatLayout
from shoal.wire.moment import EncodeContext
from shoal.wire.wrappers.feedback import ErrorFeedback
from shoal.wire.wrappers.momentum import MomentumCorrection

FIRST = 0.25


@dataclass(frozen=True)
class RatioWarmUp(GradientCodec):
    """A codec whose ratio at step t < `steps` is FIRST * (ratio / FIRST) ** (t / steps)."""

    exact = False
    codec: SparseCodec | ErrorFeedback | MomentumCorrection
    ratio: float
    steps: int

    @property
    def code(self) -> int:  # type: ignore[override]
        return self.codec.code

    def start(self, layout: FlatLayout) -> State:
        return self.codec.start(layout)

    def at(self, step: int) -> float:
        first = max(FIRST, self.ratio)
        return self.ratio if step >= self.steps else first * (self.ratio / first) ** (step / self.steps)

    def _now(self, step: int) -> GradientCodec:
        return self.codec.at(self.at(step))

    def named(self, state: State, layout: FlatLayout) -> State:
        return self.codec.named(state, layout)

    def bound(self, layout: FlatLayout) -> int:
        return max(self._now(0).bound(layout), self.codec.bound(layout))

    def pack(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        moment: EncodeContext,
        out: Tensor,
        rest: Tensor | None = None,
    ) -> int:
        return self._now(moment.step).pack(values, layout, state, moment, out, rest)

    def add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        """The sender's ratio is the largest a reader accepts: it may be ahead or behind by a step."""
        self._now(0).add(payload, layout, out)
