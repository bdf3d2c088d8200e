"""Error feedback: the part of a gradient that a codec did not send is added to the next one.

Seide et al. 2014; Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
With `decay` below 1 old errors fade, as the residuals of eSGD do. Do not use it around an unbiased codec whose noise is
larger than the gradient: the residual then grows without end.

State: `residual`, as long as the bucket. sent + residual = values + residual before (times decay), to float precision.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from shoal.wire.codec import GradientCodec, State
from shoal.wire.encode_context import EncodeContext
from shoal.wire.layout import FlatLayout

RESIDUAL = "residual"


@dataclass(frozen=True)
class ErrorFeedback(GradientCodec):
    """Adds what `codec` did not send to the next gradient it encodes."""

    codec: GradientCodec
    decay: float = 1.0

    @property
    def code(self) -> int:  # type: ignore[override]
        return self.codec.code

    @property
    def fixed_size(self) -> bool:  # type: ignore[override]
        return self.codec.fixed_size

    @property
    def dense(self) -> bool:  # type: ignore[override]
        return self.codec.dense

    @property
    def summed_as(self) -> Literal["", "factors"]:  # type: ignore[override]
        # What a cast loses is not known before the sum is rounded, so a cast with feedback is gathered instead.
        return "factors" if self.codec.summed_as == "factors" else ""

    def without_feedback(self) -> GradientCodec:
        return self.codec

    def summed_bytes(self, layout: FlatLayout) -> int | None:
        return self.codec.summed_bytes(layout) if self.summable else None

    def get_ratio(self) -> float | None:
        return self.codec.get_ratio()

    def with_ratio(self, ratio: float) -> "ErrorFeedback":
        return replace(self, codec=self.codec.with_ratio(ratio))

    def for_sum_of(self, workers: int) -> "ErrorFeedback":
        return replace(self, codec=self.codec.for_sum_of(workers))

    def init_state(self, layout: FlatLayout) -> State:
        return {RESIDUAL: torch.zeros(layout.numel), **self.codec.init_state(layout)}

    def name_state(self, state: State, layout: FlatLayout) -> State:
        return self.codec.name_state(state, layout)

    def max_bytes(self, layout: FlatLayout) -> int:
        return self.codec.max_bytes(layout)

    def encode_into(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        context: EncodeContext,
        out: Tensor,
        residual: Tensor | None = None,
    ) -> int:
        kept = state[RESIDUAL]
        if self.decay != 1.0:
            # Faded before this step's gradient is added, so that new gradients count in full.
            kept.mul_(self.decay)
        # One pass: the codec adds, encodes and leaves the rest in `kept` (`GradientCodec.encode_into`).
        return self.codec.encode_into(values, layout, state, context, out, kept)

    def decode_add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        self.codec.decode_add(payload, layout, out)

    def decode_into(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        self.codec.decode_into(payload, layout, out)
