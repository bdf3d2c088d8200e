"""A codec that sends more of the same: sparsifiers with another ratio, whatever is round them."""

from dataclasses import replace

from shoal.wire.codec import GradientCodec
from shoal.wire.codecs.randomk import RandomKCodec
from shoal.wire.codecs.sparse import SparseCodec
from shoal.wire.wrappers.feedback import ErrorFeedback
from shoal.wire.wrappers.momentum import MomentumCorrection
from shoal.wire.wrappers.parts import PartialCodec
from shoal.wire.wrappers.warmup import RatioWarmUp


def ratio_of(codec: GradientCodec) -> float | None:
    """The share of elements that travel; None for codecs that say something of all."""
    if isinstance(codec, SparseCodec | RandomKCodec):
        return codec.ratio
    return (
        ratio_of(codec.codec)
        if isinstance(codec, PartialCodec | ErrorFeedback | MomentumCorrection | RatioWarmUp)
        else None
    )


def with_ratio(codec: GradientCodec, ratio: float) -> GradientCodec:
    """The same codec with another ratio; itself where it has none."""
    if isinstance(codec, SparseCodec | RandomKCodec):
        return replace(codec, ratio=ratio)
    if isinstance(codec, RatioWarmUp):
        return replace(codec, codec=with_ratio(codec.codec, ratio), ratio=ratio)  # type: ignore[arg-type]
    if isinstance(codec, PartialCodec | ErrorFeedback | MomentumCorrection):
        return replace(codec, codec=with_ratio(codec.codec, ratio))  # type: ignore[arg-type]  # a sparsifier stays one
    return codec
