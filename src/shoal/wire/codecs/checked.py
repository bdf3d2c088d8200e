"""The common part of codecs that read all values in torch: check them, add the residual, write the head.

A member writes what follows the head. Where `keep` says that `whole` is the residual, it takes out of it what it sent.
"""

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from shoal.wire.codec import GradientCodec, State, refuse_non_finite
from shoal.wire.encode_context import EncodeContext
from shoal.wire.head import write_head
from shoal.wire.layout import FlatLayout


@dataclass(frozen=True)
class CheckedCodec(GradientCodec):
    """Base of codecs whose payloads begin with a plain head."""

    default_feedback = False
    unbiased = True

    @abstractmethod
    def encode_whole(self, whole: Tensor, layout: FlatLayout, context: EncodeContext, out: Tensor, keep: bool) -> int:
        """Write what follows the head in `out`, and return the payload's length.

        With `keep`, leave in `whole` what did not travel; without, `whole` is the caller's gradients: do not change it.
        """

    def encode_into(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        context: EncodeContext,
        out: Tensor,
        residual: Tensor | None = None,
    ) -> int:
        # Before they are added: a NaN would stay in the residual for good.
        refuse_non_finite(values, layout)
        whole = values if residual is None else residual.add_(values)
        write_head(out, self.code, layout.numel)
        return self.encode_whole(whole, layout, context, out, residual is not None)
