"""One codec of a plan's wire terms; refuses what does not compose, before anything starts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from shoal.core.errors import UsageError
from shoal.plan import codecs as terms
from shoal.plan import precision, wrappers
from shoal.plan.automatic import WireTerm
from shoal.plan.term import CodecTerm as Term
from shoal.sync.aggregate.shares import divisible
from shoal.wire.chain import WrappedCodec, chain
from shoal.wire.codec import GradientCodec
from shoal.wire.codecs.cast import Bf16Codec, Fp16Codec
from shoal.wire.codecs.fixed import FixedPointCodec
from shoal.wire.codecs.int8 import Int8Codec
from shoal.wire.codecs.layerk import LayerKCodec
from shoal.wire.codecs.lowrank import LowRankCodec
from shoal.wire.codecs.nonzero import NonzeroCodec
from shoal.wire.codecs.onebit import OneBitCodec
from shoal.wire.codecs.qsgd import QsgdCodec
from shoal.wire.codecs.randomk import RandomKCodec
from shoal.wire.codecs.ternary import TernaryCodec
from shoal.wire.codecs.threshold import ThresholdCodec
from shoal.wire.codecs.topk import TopKCodec
from shoal.wire.codecs.twobit import TwoBitCodec
from shoal.wire.codecs.uniform import UniformCodec

MAKERS: dict[type[Term], Callable[..., GradientCodec]] = {
    terms.Fp16Term: lambda t: Fp16Codec(),
    terms.Bf16Term: lambda t: Bf16Codec(),
    terms.Int8Term: lambda t: Int8Codec(t.block),
    terms.FixedTerm: lambda t: FixedPointCodec(t.bits, t.frac, t.rounding),
    terms.OneBitTerm: lambda t: OneBitCodec(t.block),
    terms.TwoBitTerm: lambda t: TwoBitCodec(t.threshold),
    terms.TernaryTerm: lambda t: TernaryCodec(t.clip, t.packing),
    terms.QsgdTerm: lambda t: QsgdCodec(t.bits, t.bucket),
    terms.NonzeroTerm: lambda t: NonzeroCodec(),
    terms.TopKTerm: lambda t: TopKCodec(t.ratio),
    terms.RandomKTerm: lambda t: RandomKCodec(t.ratio),
    terms.ThresholdTerm: lambda t: ThresholdCodec(t.t),
    terms.DgcTerm: lambda t: LayerKCodec(t.ratio),
    terms.EsgdTerm: lambda t: TopKCodec(t.ratio),
    terms.LowRankTerm: lambda t: LowRankCodec(t.rank),
    precision.DorefaTerm: lambda t: UniformCodec(t.g),
}


def compose(wire: Sequence[Term], workers: int = 1) -> GradientCodec | None:
    """The codec of these terms for one of `workers` workers; None without any, and where the run chooses it."""
    automatic = next((term for term in wire if isinstance(term, WireTerm)), None)
    if automatic is not None and len(wire) > 1:
        others = ", ".join(str(term) for term in wire if term is not automatic)
        raise UsageError(f"'{automatic}' chooses by itself and stands alone; leave it or '{others}' out")
    if automatic is not None:
        return None
    around = [term for term in wire if isinstance(term, wrappers.WrapperTerm)]
    coding = [term for term in wire if not isinstance(term, wrappers.WrapperTerm | precision.PrecisionTerm)]
    coding = coding or [term for term in wire if isinstance(term, precision.DorefaTerm) and term.g < precision.FULL]
    if not coding and not around:
        return None
    if not coding:
        raise UsageError(f"'{around[0]}' goes round a codec and the plan has none; write one before it: topk(0.01)")
    if len(coding) > 2:
        raise UsageError(f"'{coding[2]}' is a third codec; a chain is a sparsifier and a codec for its values")
    codecs = [MAKERS[type(term)](term) for term in coding]
    wrapping = _own(coding[0], workers)
    for number, term in enumerate(around):
        if type(term) in [type(t) for t in around[:number]] and not isinstance(term, wrappers.ByNameTerm):
            raise UsageError(f"'{term}' is the second {term.name} of the plan; keep one")
        wrapping = _with(wrapping, term, coding[0], workers)
    codec = chain(codecs[0], codecs[1] if len(codecs) > 1 else None, wrapping)
    _can_meet(codec, coding[0], around)
    return codec


def _can_meet(codec: GradientCodec, term: Term, around: Sequence[Term]) -> None:
    """Refuse a way to meet that the codec's payloads do not have."""
    meet = next((each for each in around if isinstance(each, wrappers.MeetTerm)), None)
    if meet is None or meet.how == "auto":
        return
    if isinstance(term, terms.Fp16Term | terms.Bf16Term | terms.LowRankTerm):
        raise UsageError(f"'{meet}' with '{term}': its payloads are summed; leave meet out")
    if meet.how == "twostage" and not divisible(codec):
        raise UsageError(
            f"'{meet}' with '{term}': only codecs that say something of every element meet in two stages "
            "(onebit, twobit, ternary, int8, qsgd, fixed); write meet(gather)"
        )


def _own(term: Term, workers: int) -> WrappedCodec:
    """What a codec term brings along itself."""
    if isinstance(term, terms.DgcTerm):
        momentum = term.momentum or (0.0 if term.clip else None)
        return WrappedCodec(momentum=momentum, clip=_local(term.clip, workers), warmup=term.warmup)
    return WrappedCodec(decay=term.momentum) if isinstance(term, terms.EsgdTerm) else WrappedCodec()


def _with(wrapping: WrappedCodec, term: Term, codec: Term, workers: int) -> WrappedCodec:
    match term:
        case wrappers.FeedbackTerm():
            if term.errors == "off" and wrapping.momentum is not None:
                raise UsageError(f"'{term}' with '{codec}': momentum correction keeps the residual; write momentum=0")
            return replace(wrapping, feedback=term.errors == "on")
        case wrappers.MomentumTerm():
            return replace(wrapping, momentum=term.factor, clip=_local(term.clip, workers))
        case wrappers.WarmUpTerm():
            return replace(wrapping, warmup=term.steps)
        case wrappers.BySizeTerm():
            return replace(wrapping, least=term.least)
        case wrappers.MeetTerm() | wrappers.GuardTerm():
            return wrapping  # round the exchange, not round the codec
        case wrappers.ByNameTerm():
            return replace(wrapping, words=(*wrapping.words, term.word))
    raise UsageError(f"'{term}' is not known to the codecs; terms are {', '.join(terms.CODECS)}")


def _local(clip: float, workers: int) -> float:
    """A worker's share of the clipping: its gradient is noisier than the mean, and counts 1/workers in the sum."""
    return clip / workers / math.sqrt(workers)
