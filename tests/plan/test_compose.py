"""From wire terms to one codec: what each term becomes, the defaults, and what is refused."""

import pytest

from shoal.core.errors import UsageError
from shoal.plan import Plan
from shoal.plan.compose import compose
from shoal.plan.wrappers import WRAPPERS
from shoal.wire.builtin import BUILT_IN
from shoal.wire.codecs.cast import Fp16Codec
from shoal.wire.codecs.int8 import Int8Codec
from shoal.wire.codecs.layerk import LayerKCodec
from shoal.wire.codecs.lowrank import LowRankCodec
from shoal.wire.codecs.onebit import OneBitCodec
from shoal.wire.codecs.topk import TopKCodec
from shoal.wire.wrappers.feedback import ErrorFeedback
from shoal.wire.wrappers.momentum import MomentumCorrection
from shoal.wire.wrappers.parts import PartialCodec
from shoal.wire.wrappers.warmup import RatioWarmUp

WRITTEN = {"topk": "topk(0.01)", "randomk": "randomk(0.01)", "threshold": "threshold(0.1)"}


def codec(text: str, workers: int = 1):
    return compose(Plan.parse(text).wire, workers)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_codec_can_be_written_read_and_made(name):
    plan = Plan.parse(f"{WRITTEN.get(name, name)}, every(1), allreduce")
    assert Plan.parse(str(plan)) == plan
    assert compose(plan.wire) is not None


@pytest.mark.parametrize("name", [*BUILT_IN, *WRAPPERS])
def test_every_term_says_what_it_costs_and_when_to_avoid_it(name):
    text = (BUILT_IN | WRAPPERS)[name].__doc__ or ""
    assert "Costs:" in text
    assert "Avoid:" in text
    assert name.startswith("by_") or "Cites:" in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("allreduce", None),
        ("wire(auto)", None),
        ("fp16", Fp16Codec()),
        ("onebit", PartialCodec(ErrorFeedback(OneBitCodec()))),
        ("onebit, feedback(off)", PartialCodec(OneBitCodec())),
        ("int8(64)", PartialCodec(Int8Codec(64))),
        ("int8, feedback(on)", PartialCodec(ErrorFeedback(Int8Codec()))),
        ("topk(0.1), int8", PartialCodec(ErrorFeedback(TopKCodec(0.1, Int8Codec())))),
        ("topk(0.1), warmup(9)", PartialCodec(RatioWarmUp(ErrorFeedback(TopKCodec(0.1)), 0.1, 9))),
        (
            "topk(0.1), by_size(5), by_name(norm), by_name(bias)",
            PartialCodec(ErrorFeedback(TopKCodec(0.1)), 5, ("norm", "bias")),
        ),
        ("topk(0.1), momentum(0.5)", PartialCodec(MomentumCorrection(TopKCodec(0.1), 0.5))),
        ("dgc", PartialCodec(MomentumCorrection(LayerKCodec(0.001), 0.9))),
        ("dgc(momentum=0)", PartialCodec(ErrorFeedback(LayerKCodec(0.001)))),
        ("esgd(0.5)", PartialCodec(ErrorFeedback(TopKCodec(0.5), 0.9))),
        ("lowrank(3)", ErrorFeedback(LowRankCodec(3))),
        ("lowrank(3), feedback(off)", LowRankCodec(3)),
    ],
)
def test_terms_become_codecs(text, expected):
    assert codec(text) == expected


def test_clipping_is_a_workers_share():
    """Lin et al.: clip / sqrt(workers) of a gradient that counts 1/workers here."""
    made = codec("dgc(clip=8.0)", workers=4)
    assert isinstance(made.codec, MomentumCorrection)
    assert made.codec.clip == 8.0 / 4 / 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("topk(0.1), int8, fp16", "'fp16' is a third codec"),
        ("onebit, feedback(on), feedback(off)", "is the second feedback"),
        ("dgc, feedback(off)", "momentum correction keeps the residual"),
        ("warmup(5)", "the plan has none"),
        ("int8, onebit", "only a sparsifier's values"),
        ("topk(0.1), meet(twostage)", "only codecs that say something of every element"),
        ("fp16, meet(gather)", "its payloads are summed; leave meet out"),
        ("meet(gather)", "the plan has none"),
        ("guard(0.9)", "the plan has none"),
        ("wire(auto), topk(0.1)", "chooses by itself and stands alone; leave it or 'topk"),
        ("wire(auto), wire(auto)", "chooses by itself and stands alone"),
    ],
)
def test_what_does_not_compose_is_refused(text, words):
    with pytest.raises(UsageError, match=words):
        codec(text)


@pytest.mark.parametrize(
    "text", ["topk", "topk(0)", "topk(1.5)", "lowrank(0)", "onebit(3)", "fixed(bits=40)", "twobit(0)", "warmup(0)",
             "dgc(momentum=1)", "qsgd(bits=9)", "feedback(yes)", "int8(1.5)"],
)  # fmt: skip
def test_arguments_out_of_range_are_refused_when_written(text):
    with pytest.raises(UsageError):
        Plan.parse(text)


def test_a_codec_with_its_systems_name_is_both():
    assert Plan.parse("dgc") == Plan.parse("dgc(0.001), allreduce")
    assert Plan.parse("dgc, by_size(0)").wire[1].least == 0
    assert str(Plan.parse("1bit-sgd")) == "allreduce, every(1), onebit(2048)"
