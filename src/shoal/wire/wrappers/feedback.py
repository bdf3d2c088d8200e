"""Error feedback: what a codec did not send is added to what it sends next.

Seide et al. 2014; Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
With `decay` below 1 old errors fade, as the residuals of eSGD do. Do not use it round an unbiased codec whose noise is
larger than the gradient: the residual then grows without end.

State: `residual`, as long as the bucket. sent + residual = values + residual before (times decay), to float precision.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.wire.codec import GradientCodec, State
from shoal.wire.codecs.sparse import SparseCodec
from shoal.wire.layout import FlatLayout
from shoal.wire.moment import EncodeContext

RESIDUAL = "residual"


@dataclass(frozen=True)
class ErrorFeedback(GradientCodec):
    """A codec that forgets nothing."""

    codec: GradientCodec
    decay: float = 1.0

    @property
    def code(self) -> int:  # type: ignore[override]
        return self.codec.code

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.codec.exact

    def at(self, ratio: float) -> "ErrorFeedback":
        """The same with another ratio, for a warm-up of a sparsifier."""
        assert isinstance(self.codec, SparseCodec)
        return ErrorFeedback(self.codec.at(ratio), self.decay)

    def start(self, layout: FlatLayout) -> State:
        return {RESIDUAL: torch.zeros(layout.numel), **self.codec.start(layout)}

    def named(self, state: State, layout: FlatLayout) -> State:
        return self.codec.named(state, layout)

    def bound(self, layout: FlatLayout) -> int:
        return self.codec.bound(layout)

    def pack(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        moment: EncodeContext,
        out: Tensor,
        rest: Tensor | None = None,
    ) -> int:
        residual = state[RESIDUAL]
        if self.decay != 1.0:
            residual.mul_(self.decay)
        return self.codec.pack(values, layout, state, moment, out, residual)

    def add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        self.codec.add(payload, layout, out)

    def put(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        self.codec.put(payload, layout, out)
