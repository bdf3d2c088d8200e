"""Warm-up: a sparsifier begins with a quarter of the elements and tightens, step by step, to its ratio.

Lin et al., "Deep Gradient Compression", ICLR 2018, section 3.3: in the first epochs gradients change fast and many
must be sent; the ratio falls exponentially from 25 %. Do not use it in short runs: the first steps send many bytes.
"""

from dataclasses import dataclass

from torch import Tensor

from shoal.wire.codec import Codec, State
from shoal.wire.codecs.sparse import Sparse
from shoal.wire.layout import Layout
from shoal.wire.moment import Moment
from shoal.wire.wrappers.feedback import Feedback
from shoal.wire.wrappers.momentum import Momentum

FIRST = 0.25


@dataclass(frozen=True)
class WarmUp(Codec):
    """A codec whose ratio at step t < `steps` is FIRST * (ratio / FIRST) ** (t / steps)."""

    exact = False
    codec: Sparse | Feedback | Momentum
    ratio: float
    steps: int

    @property
    def code(self) -> int:  # type: ignore[override]
        return self.codec.code

    def start(self, layout: Layout) -> State:
        return self.codec.start(layout)

    def at(self, step: int) -> float:
        first = max(FIRST, self.ratio)
        return self.ratio if step >= self.steps else first * (self.ratio / first) ** (step / self.steps)

    def _now(self, step: int) -> Codec:
        return self.codec.at(self.at(step))

    def named(self, state: State, layout: Layout) -> State:
        return self.codec.named(state, layout)

    def bound(self, layout: Layout) -> int:
        return max(self._now(0).bound(layout), self.codec.bound(layout))

    def pack(
        self, values: Tensor, layout: Layout, state: State, moment: Moment, out: Tensor, rest: Tensor | None = None
    ) -> int:
        return self._now(moment.step).pack(values, layout, state, moment, out, rest)

    def add(self, payload: Tensor, layout: Layout, out: Tensor) -> None:
        """The sender's ratio is the largest a reader accepts: it may be ahead or behind by a step."""
        self._now(0).add(payload, layout, out)
