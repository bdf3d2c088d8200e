"""A codec that sends more of the same: sparsifiers with another ratio, whatever is round them."""

from dataclasses import replace

from shoal.wire.codec import Codec
from shoal.wire.codecs.randomk import RandomK
from shoal.wire.codecs.sparse import Sparse
from shoal.wire.wrappers.feedback import Feedback
from shoal.wire.wrappers.momentum import Momentum
from shoal.wire.wrappers.parts import Parts
from shoal.wire.wrappers.warmup import WarmUp


def ratio_of(codec: Codec) -> float | None:
    """The share of elements that travel; None for codecs that say something of all."""
    if isinstance(codec, Sparse | RandomK):
        return codec.ratio
    return ratio_of(codec.codec) if isinstance(codec, Parts | Feedback | Momentum | WarmUp) else None


def with_ratio(codec: Codec, ratio: float) -> Codec:
    """The same codec with another ratio; itself where it has none."""
    if isinstance(codec, Sparse | RandomK):
        return replace(codec, ratio=ratio)
    if isinstance(codec, WarmUp):
        return replace(codec, codec=with_ratio(codec.codec, ratio), ratio=ratio)  # type: ignore[arg-type]
    if isinstance(codec, Parts | Feedback | Momentum):
        return replace(codec, codec=with_ratio(codec.codec, ratio))  # type: ignore[arg-type]  # a sparsifier stays one
    return codec
