"""Compose one codec from the parts of a plan: wrappers go around it, a second codec writes what a sparsifier chose.

    topk(0.01), int8        the chosen values at 8 bits
    onebit, feedback(off)   without error feedback

By default biased codecs have feedback. Tensors of one dimension travel as they are, unless payloads are summed.
"""

from dataclasses import replace

from shoal.core.errors import UsageError
from shoal.wire.codec import GradientCodec
from shoal.wire.codecs.lowrank import LowRankCodec
from shoal.wire.codecs.randomk import RandomKCodec
from shoal.wire.codecs.sparse import SparseCodec
from shoal.wire.layout import FlatLayout
from shoal.wire.settings import CodecWrapping
from shoal.wire.wrappers.feedback import ErrorFeedback
from shoal.wire.wrappers.momentum import MomentumCorrection
from shoal.wire.wrappers.parts import PartialCodec
from shoal.wire.wrappers.warmup import RatioWarmUp

PROBE = FlatLayout.of([("matrix", (8, 8)), ("vector", (8,))])
"""Shows whether a codec remembers anything."""


def chain(first: GradientCodec, second: GradientCodec | None, wrapping: CodecWrapping) -> GradientCodec:
    """Return one codec; raise UsageError for what does not compose."""
    codec = first if second is None else _code_values(first, second)
    codec = _add_feedback(codec, wrapping)
    if wrapping.warmup:
        if not isinstance(first, SparseCodec):
            raise UsageError(f"warmup after {first.name}: it has no ratio to tighten; use topk, dgc or esgd")
        codec = RatioWarmUp(codec, first.ratio, wrapping.warmup)
    # Payloads that are summed must lie alike on all workers, so nothing is taken out of them.
    if not first.summable:
        return PartialCodec(codec, wrapping.least, wrapping.words)
    if wrapping.least is not None or wrapping.words:
        raise UsageError(f"by_size and by_name do not go with {first.name}, whose payloads are summed; leave them out")
    return codec


def _code_values(first: GradientCodec, second: GradientCodec) -> GradientCodec:
    """Return the sparsifier `first` with `second` for the values it chose."""
    if not isinstance(first, SparseCodec | RandomKCodec):
        raise UsageError(
            f"{second.name} after {first.name}: only a sparsifier's values are coded again; "
            "write topk(...), randomk(...), dgc(...) or esgd(...) first, or keep one of the two"
        )
    if isinstance(second, SparseCodec | RandomKCodec | LowRankCodec):
        raise UsageError(f"{second.name} after {first.name}: what was chosen is not chosen again; keep one")
    if second.init_state(PROBE):
        # Other elements are chosen at every step, so a state by place would belong to the wrong ones.
        raise UsageError(f"{second.name} after {first.name}: it remembers values by their place; keep one of the two")
    return replace(first, values=second)


def _add_feedback(codec: GradientCodec, wrapping: CodecWrapping) -> GradientCodec:
    if wrapping.momentum is not None:
        if not isinstance(codec, SparseCodec):
            raise UsageError(f"momentum around {codec.name}: it corrects what a sparsifier delays; use topk or dgc")
        return MomentumCorrection(codec, wrapping.momentum, wrapping.clip, wrapping.masking)
    # Biased codecs lose convergence without feedback, unbiased ones only gain a copy of the gradients.
    wanted = codec.default_feedback if wrapping.feedback is None else wrapping.feedback
    return ErrorFeedback(codec, wrapping.decay) if wanted else codec
