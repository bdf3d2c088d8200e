"""Make one codec of a plan's wire terms; refuse what does not compose before anything starts."""

from collections.abc import Sequence

from shoal.core.errors import UsageError
from shoal.plan.precision import PrecisionTerm
from shoal.plan.term import NamedTerm
from shoal.plan.wrappers import MeetTerm, WireTerm, WrapperTerm
from shoal.wire.chain import chain
from shoal.wire.codec import GradientCodec
from shoal.wire.settings import CodecSettings, CodecWrapping


def compose(wire: Sequence[NamedTerm], workers: int = 1) -> GradientCodec | None:
    """Return the codec of these terms for one of `workers` workers.

    None where values travel as they are, and where `wire(auto)` lets the run choose.
    """
    automatic = next((term for term in wire if isinstance(term, WireTerm)), None)
    if automatic is not None and len(wire) > 1:
        others = ", ".join(str(term) for term in wire if term is not automatic)
        raise UsageError(f"'{automatic}' chooses by itself and stands alone; leave it or '{others}' out")
    # The run makes the codec once it has measured.
    if automatic is not None:
        return None
    around = [term for term in wire if isinstance(term, WrapperTerm)]
    coding = [term for term in wire if not isinstance(term, WrapperTerm | PrecisionTerm)]
    # A codec that is written takes the place of the one that a term of precision brings along.
    made = [(term, term.make_codec()) for term in coding if isinstance(term, CodecSettings)] or _from_precision(wire)
    if not made and not around:
        return None
    if not made:
        raise UsageError(f"'{around[0]}' goes around a codec and the plan has none; write one before it: topk(0.01)")
    # The second writes the values of the first; what it writes cannot be chosen from again.
    if len(made) > 2:
        raise UsageError(f"'{made[2][0]}' is a third codec; a chain is a sparsifier and a codec for its values")
    term, first = made[0]
    codec = chain(first, made[1][1] if len(made) > 1 else None, _wrap(term, around, workers))
    _check_meeting(codec, term, around)
    return codec


def _from_precision(wire: Sequence[NamedTerm]) -> list[tuple[NamedTerm, GradientCodec]]:
    """Return the codec that a term of precision brings along where the plan holds none."""
    made = ((term, term.make_codec()) for term in wire if isinstance(term, PrecisionTerm))
    return [(term, codec) for term, codec in made if codec is not None]


def _wrap(codec: NamedTerm, around: Sequence[WrapperTerm], workers: int) -> CodecWrapping:
    """Return what goes around the codec: what its own term brings along, then the plan's terms in order."""
    # First the codec's own, so that the plan's terms may change it.
    wrapping = codec.make_wrapping(workers) if isinstance(codec, CodecSettings) else CodecWrapping()
    for number, term in enumerate(around):
        if not term.repeatable and type(term) in [type(other) for other in around[:number]]:
            raise UsageError(f"'{term}' is the second {term.name} of the plan; keep one")
        wrapping = term.add_to(wrapping, codec, workers)
    return wrapping


def _check_meeting(codec: GradientCodec, term: NamedTerm, around: Sequence[NamedTerm]) -> None:
    """Raise UsageError for a way to meet that the codec's payloads do not have."""
    meet = next((each for each in around if isinstance(each, MeetTerm)), None)
    if meet is None or meet.how == "auto":
        return
    if codec.summable:
        raise UsageError(f"'{meet}' with '{term}': its payloads are summed; leave meet out")
    if meet.how == "twostage" and not codec.divisible:
        raise UsageError(
            f"'{meet}' with '{term}': only codecs that say something of every element meet in two stages "
            "(onebit, twobit, ternary, int8, qsgd, fixed); write meet(gather)"
        )
