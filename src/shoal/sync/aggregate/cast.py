"""Half-precision buckets are summed by an all-reduce engine: payloads add up, so nothing is decoded by rank.

fp16 is scaled by a power of two that all workers know without a message: it follows from the last sum, which is the
same everywhere. A worker's values are clamped to 65504/p, so that no sum overflows; 2^5 of headroom make that rare.

    | values * scale, rounded | one mark per layer: 1 if this worker has it |

bf16 marks add up exactly for up to 256 workers, fp16 marks for 2048; only whether the sum is zero counts.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.membership.listener import MembershipListener
from shoal.membership.view import MembershipView
from shoal.sync.aggregate.base import PayloadAggregator
from shoal.sync.engine.base import AllReduceEngine
from shoal.wire.bucket import BucketSpace
from shoal.wire.codec import magnitude, refuse_non_finite
from shoal.wire.codecs.cast import CastCodec, power_of_two
from shoal.wire.layout import FlatLayout

FIRST = 2.0**10
"""The scale of the first exchange, before any sum is known: from 6e-8 to 64/p without loss."""
TOP = 9
"""Later, the last sum's largest value is brought to just below 2^10, 2^5 and more below what fp16 holds."""


class CastAggregator(PayloadAggregator, MembershipListener):
    """fp16 or bf16."""

    engine: AllReduceEngine

    def __init__(self, codec: CastCodec, engine: AllReduceEngine, size: int) -> None:
        self.codec, self.engine = codec, engine
        self._largest = torch.finfo(codec.dtype).max / size
        self._next: list[float] = []

    def on_view_change(self, view: MembershipView, newcomers: Sequence[str]) -> None:
        """Follow a new view. Newcomers do not know the last sum, so with them all begin anew with the first scale."""
        self._largest = torch.finfo(self.codec.dtype).max / len(view)
        if newcomers and self.codec.scaled:
            self._next = [FIRST] * len(self._next)

    def _open(self, layouts: Sequence[FlatLayout]) -> None:
        self._layouts = layouts
        spaces = [BucketSpace(n.numel + len(n.parts), self.codec.dtype, torch.device("cpu")) for n in layouts]
        self._pairs = self.engine.open(spaces)
        self._scales = [FIRST if self.codec.scaled else 1.0] * len(layouts)
        self._next = list(self._scales)  # applied when the next exchange starts: a retry needs the scales of this one
        self._scratch = torch.empty(max((n.numel for n in layouts), default=0))

    def prepare(self) -> None:
        self.engine.prepare()

    def start(self, index: int, values: Tensor, present: Sequence[bool]) -> None:
        leaving, layout = self._pairs[index][0], self._layouts[index]
        self._scales[index] = self._next[index]
        refuse_non_finite(values, layout)
        scaled = torch.mul(values, self._scales[index], out=self._scratch[: layout.numel])
        leaving[: layout.numel].copy_(scaled.clamp_(-self._largest, self._largest))
        leaving[layout.numel :].copy_(torch.tensor(present))
        self._send(index)

    def start_non_finite(self, index: int) -> None:
        leaving, numel = self._pairs[index][0], self._layouts[index].numel
        self._scales[index] = self._next[index]
        leaving[:numel].zero_()
        # NaN stays in any sum, so all workers see it
        leaving[numel:].fill_(torch.nan)
        self._send(index)

    def _send(self, index: int) -> None:
        leaving = self._pairs[index][0]
        self.observer.sent_bytes += leaving.numel() * leaving.element_size()
        self.observer.wire_bytes += self.engine.wire_bytes(index)
        self.engine.start(index)

    def is_done(self, index: int) -> bool:
        return self.engine.is_done(index)

    def finish(self, index: int, out: Tensor) -> list[float]:
        with self.waiting():
            self.engine.finish(index)
        result, numel = self._pairs[index][1], self._layouts[index].numel
        torch.mul(result[:numel].float(), 1.0 / self._scales[index], out=out)
        # a sum of zeros tells no scale, so the last one stays
        if self.codec.scaled and bool(result[:numel].any()):
            self._next[index] = power_of_two(magnitude(out), TOP)
        return result[numel:].tolist()
