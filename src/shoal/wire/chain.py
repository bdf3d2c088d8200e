"""From the wire terms of a plan to one codec: wrappers go round, a second codec writes what a sparsifier chose.

    topk(0.01), int8        the chosen values at 8 bits
    onebit, feedback(off)   without error feedback

What the default is: feedback for biased codecs; tensors of one dimension travel as they are, except under a cast.
"""

from dataclasses import dataclass, replace

from shoal.core.errors import UsageError
from shoal.wire.codec import GradientCodec
from shoal.wire.codecs.cast import CastCodec
from shoal.wire.codecs.lowrank import LowRankCodec
from shoal.wire.codecs.randomk import RandomKCodec
from shoal.wire.codecs.sparse import SparseCodec
from shoal.wire.wrappers.feedback import ErrorFeedback
from shoal.wire.wrappers.momentum import MomentumCorrection
from shoal.wire.wrappers.parts import PartialCodec
from shoal.wire.wrappers.warmup import RatioWarmUp


@dataclass(frozen=True)
class WrappedCodec:
    """What goes round a codec; None where the codec's own default counts."""

    feedback: bool | None = None
    decay: float = 1.0
    momentum: float | None = None
    clip: float = 0.0
    masking: bool = True
    warmup: int = 0
    least: int | None = None
    words: tuple[str, ...] = ()


def chain(first: GradientCodec, second: GradientCodec | None, wrapping: WrappedCodec) -> GradientCodec:
    """One codec of a plan's terms; refuses what does not compose."""
    codec = first
    if second is not None:
        if not isinstance(first, SparseCodec | RandomKCodec):
            raise UsageError(
                f"{_name(second)} after {_name(first)}: only a sparsifier's values are coded again; "
                "write topk(...), randomk(...), dgc(...) or esgd(...) first, or keep one of the two"
            )
        if isinstance(second, SparseCodec | RandomKCodec | LowRankCodec):
            raise UsageError(f"{_name(second)} after {_name(first)}: what was chosen is not chosen again; keep one")
        codec = replace(first, values=second)
    codec = _fed_back(codec, wrapping)
    if wrapping.warmup:
        if not isinstance(first, SparseCodec):
            raise UsageError(f"warmup after {_name(first)}: it has no ratio to tighten; use topk, dgc or esgd")
        assert isinstance(codec, SparseCodec | ErrorFeedback | MomentumCorrection)
        codec = RatioWarmUp(codec, first.ratio, wrapping.warmup)
    if isinstance(first, LowRankCodec | CastCodec) and (wrapping.least is not None or wrapping.words):
        raise UsageError(
            f"by_size and by_name do not go with {_name(first)}, whose payloads are summed; leave them out"
        )
    return codec if isinstance(first, LowRankCodec | CastCodec) else PartialCodec(codec, wrapping.least, wrapping.words)


def _fed_back(codec: GradientCodec, wrapping: WrappedCodec) -> GradientCodec:
    if wrapping.momentum is not None:
        if not isinstance(codec, SparseCodec):
            raise UsageError(f"momentum round {_name(codec)}: it corrects what a sparsifier delays; use topk or dgc")
        return MomentumCorrection(codec, wrapping.momentum, wrapping.clip, wrapping.masking)
    wanted = codec.feedback if wrapping.feedback is None else wrapping.feedback
    return ErrorFeedback(codec, wrapping.decay) if wanted else codec


def _name(codec: GradientCodec) -> str:
    return type(codec).__name__.removesuffix("Codec").lower()
