"""One codec of a plan's wire terms; refuses what does not compose, before anything starts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from shoal.core.errors import UsageError
from shoal.plan import codecs as terms
from shoal.plan import precision, wrappers
from shoal.plan.automatic import Wire
from shoal.plan.term import Codec as Term
from shoal.sync.meet.cut import divisible
from shoal.wire.chain import Wrapping, chain
from shoal.wire.codec import Codec
from shoal.wire.codecs.cast import Bf16, Fp16
from shoal.wire.codecs.fixed import Fixed
from shoal.wire.codecs.int8 import Int8
from shoal.wire.codecs.layerk import LayerK
from shoal.wire.codecs.lowrank import LowRank
from shoal.wire.codecs.nonzero import Nonzero
from shoal.wire.codecs.onebit import OneBit
from shoal.wire.codecs.qsgd import Qsgd
from shoal.wire.codecs.randomk import RandomK
from shoal.wire.codecs.ternary import Ternary
from shoal.wire.codecs.threshold import Threshold
from shoal.wire.codecs.topk import TopK
from shoal.wire.codecs.twobit import TwoBit
from shoal.wire.codecs.uniform import Uniform

MAKERS: dict[type[Term], Callable[..., Codec]] = {
    terms.Fp16: lambda t: Fp16(),
    terms.Bf16: lambda t: Bf16(),
    terms.Int8: lambda t: Int8(t.block),
    terms.Fixed: lambda t: Fixed(t.bits, t.frac, t.rounding),
    terms.OneBit: lambda t: OneBit(t.block),
    terms.TwoBit: lambda t: TwoBit(t.threshold),
    terms.Ternary: lambda t: Ternary(t.clip, t.packing),
    terms.Qsgd: lambda t: Qsgd(t.bits, t.bucket),
    terms.Nonzero: lambda t: Nonzero(),
    terms.TopK: lambda t: TopK(t.ratio),
    terms.RandomK: lambda t: RandomK(t.ratio),
    terms.Threshold: lambda t: Threshold(t.t),
    terms.Dgc: lambda t: LayerK(t.ratio),
    terms.Esgd: lambda t: TopK(t.ratio),
    terms.LowRank: lambda t: LowRank(t.rank),
    precision.Dorefa: lambda t: Uniform(t.g),
}


def compose(wire: Sequence[Term], workers: int = 1) -> Codec | None:
    """The codec of these terms for one of `workers` workers; None without any, and where the run chooses it."""
    automatic = next((term for term in wire if isinstance(term, Wire)), None)
    if automatic is not None and len(wire) > 1:
        others = ", ".join(str(term) for term in wire if term is not automatic)
        raise UsageError(f"'{automatic}' chooses by itself and stands alone; leave it or '{others}' out")
    if automatic is not None:
        return None
    around = [term for term in wire if isinstance(term, wrappers.Wrapper)]
    coding = [term for term in wire if not isinstance(term, wrappers.Wrapper | precision.Precision)]
    coding = coding or [term for term in wire if isinstance(term, precision.Dorefa) and term.g < precision.FULL]
    if not coding and not around:
        return None
    if not coding:
        raise UsageError(f"'{around[0]}' goes round a codec and the plan has none; write one before it: topk(0.01)")
    if len(coding) > 2:
        raise UsageError(f"'{coding[2]}' is a third codec; a chain is a sparsifier and a codec for its values")
    codecs = [MAKERS[type(term)](term) for term in coding]
    wrapping = _own(coding[0], workers)
    for number, term in enumerate(around):
        if type(term) in [type(t) for t in around[:number]] and not isinstance(term, wrappers.ByName):
            raise UsageError(f"'{term}' is the second {term.name} of the plan; keep one")
        wrapping = _with(wrapping, term, coding[0], workers)
    codec = chain(codecs[0], codecs[1] if len(codecs) > 1 else None, wrapping)
    _can_meet(codec, coding[0], around)
    return codec


def _can_meet(codec: Codec, term: Term, around: Sequence[Term]) -> None:
    """Refuse a way to meet that the codec's payloads do not have."""
    meet = next((each for each in around if isinstance(each, wrappers.Meet)), None)
    if meet is None or meet.how == "auto":
        return
    if isinstance(term, terms.Fp16 | terms.Bf16 | terms.LowRank):
        raise UsageError(f"'{meet}' with '{term}': its payloads are summed; leave meet out")
    if meet.how == "twostage" and not divisible(codec):
        raise UsageError(
            f"'{meet}' with '{term}': only codecs that say something of every element meet in two stages "
            "(onebit, twobit, ternary, int8, qsgd, fixed); write meet(gather)"
        )


def _own(term: Term, workers: int) -> Wrapping:
    """What a codec term brings along itself."""
    if isinstance(term, terms.Dgc):
        momentum = term.momentum or (0.0 if term.clip else None)
        return Wrapping(momentum=momentum, clip=_local(term.clip, workers), warmup=term.warmup)
    return Wrapping(decay=term.momentum) if isinstance(term, terms.Esgd) else Wrapping()


def _with(wrapping: Wrapping, term: Term, codec: Term, workers: int) -> Wrapping:
    match term:
        case wrappers.Feedback():
            if term.errors == "off" and wrapping.momentum is not None:
                raise UsageError(f"'{term}' with '{codec}': momentum correction keeps the residual; write momentum=0")
            return replace(wrapping, feedback=term.errors == "on")
        case wrappers.Momentum():
            return replace(wrapping, momentum=term.factor, clip=_local(term.clip, workers))
        case wrappers.WarmUp():
            return replace(wrapping, warmup=term.steps)
        case wrappers.BySize():
            return replace(wrapping, least=term.least)
        case wrappers.Meet() | wrappers.Guard():
            return wrapping  # round the exchange, not round the codec
        case wrappers.ByName():
            return replace(wrapping, words=(*wrapping.words, term.word))
    raise UsageError(f"'{term}' is not known to the codecs; terms are {', '.join(terms.CODECS)}")


def _local(clip: float, workers: int) -> float:
    """A worker's share of the clipping: its gradient is noisier than the mean, and counts 1/workers in the sum."""
    return clip / workers / math.sqrt(workers)
