"""Elements chosen at random travel, the same places on every worker, so that no place needs to be sent.

Konečný et al., "Federated Learning: Strategies for Improving Communication Efficiency", 2016 (random masks from a
seed); Stich et al., "Sparsified SGD with Memory", NeurIPS 2018. The bucket is cut into as many strata as elements
travel, one is drawn from each. Without feedback values are multiplied by the stratum's length, which makes it unbiased.
Do not use it where topk is affordable: it learns as much from far more bytes.

    head (count) | two words of the context, 16 bytes | payload of the values' codec
"""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import PayloadError
from shoal.core.term import INTERNAL
from shoal.wire import selection
from shoal.wire.codec import GradientCodec, State, refuse_non_finite
from shoal.wire.codecs.raw import RawCodec
from shoal.wire.encode_context import MASK, EncodeContext, hashes
from shoal.wire.head import HEAD, read_head, write_head
from shoal.wire.layout import FlatLayout
from shoal.wire.sparse_settings import RandomKSettings

START = HEAD.size + 16


@dataclass(frozen=True)
class RandomKCodec(RandomKSettings, GradientCodec):
    """Exactly one element of every stratum."""

    code = 12
    unbiased = True
    values: GradientCodec = field(default_factory=RawCodec, metadata=INTERNAL)

    def get_ratio(self) -> float:
        return self.ratio

    def with_ratio(self, ratio: float) -> "RandomKCodec":
        return replace(self, ratio=ratio)

    def _count(self, layout: FlatLayout) -> int:
        return selection.wanted_count(self.ratio, layout.numel)

    @property
    def fixed_size(self) -> bool:  # type: ignore[override]
        return self.values.fixed_size

    def max_bytes(self, layout: FlatLayout) -> int:
        return START + self.values.max_bytes(FlatLayout.flat(self._count(layout)))

    def encode_into(
        self,
        values: Tensor,
        layout: FlatLayout,
        state: State,
        context: EncodeContext,
        out: Tensor,
        residual: Tensor | None = None,
    ) -> int:
        refuse_non_finite(values, layout)
        count, words = self._count(layout), context.shared_words()
        places, lengths = strata(layout.numel, count, words)
        whole = values if residual is None else residual.add_(values)
        chosen = whole[places] * lengths if residual is None else whole[places]
        write_head(out, self.code, layout.numel, count)
        # The words travel too, so that a receiver in another step still finds the places.
        out[HEAD.size : START].view(torch.int64).copy_(torch.tensor(words))
        left = None if residual is None else torch.zeros(count)
        length = self.values.encode_into(chosen, FlatLayout.flat(count), {}, context, out[START:], left)
        if residual is not None:
            # What the values' codec lost stays at its place.
            residual[places] = left if left is not None else 0.0
        return START + length

    def decode_add(self, payload: Tensor, layout: FlatLayout, out: Tensor) -> None:
        count, extra = read_head(payload, self.code, layout.numel)
        if extra or count != self._count(layout) or payload.numel() < START:
            raise PayloadError(f"a payload says {count} elements where {self._count(layout)} were due; it is foreign")
        first, second = payload[HEAD.size : START].view(torch.int64).tolist()
        if not (0 <= first <= MASK and 0 <= second <= MASK):
            raise PayloadError("a payload's seed is out of range; it was changed or is foreign")
        values = torch.zeros(count)
        self.values.decode_add(payload[START:], FlatLayout.flat(count), values)
        out[strata(layout.numel, count, (first, second))[0]] += values


def strata(numel: int, count: int, words: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """One place of each of `count` strata, and the strata's lengths."""
    # Whole-number division of products: strata differ by one element at most, and the last ends at the end.
    edges = torch.from_numpy(np.arange(count + 1, dtype=np.int64) * numel // max(count, 1))
    lengths = edges[1:] - edges[:-1]
    return edges[:-1] + hashes(0, count, words) % lengths.clamp(min=1), lengths
