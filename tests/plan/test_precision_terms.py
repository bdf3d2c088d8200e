"""The terms of precision: written and read back, beside codecs, and refused where they make no sense."""

import pytest

from shoal.core.errors import UsageError
from shoal.plan import Plan
from shoal.plan.compose import compose
from shoal.plan.precision import PRECISION
from shoal.plan.rules import check
from shoal.wire.codecs.int8 import Int8Codec
from shoal.wire.codecs.uniform import UniformCodec
from shoal.wire.wrappers.parts import PartialCodec


@pytest.mark.parametrize("name", PRECISION)
def test_a_term_is_written_and_read_back(name: str) -> None:
    plan = Plan.parse(f"{name}, every(1)")
    assert Plan.parse(str(plan)) == plan
    assert check(plan, 2) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("weights", None),
        ("halp", None),
        ("dorefa(g=32)", None),
        ("dorefa(g=4)", PartialCodec(UniformCodec(4))),
        ("dorefa(g=4), by_size(0)", PartialCodec(UniformCodec(4), 0)),
        ("dorefa(g=4), int8(64)", PartialCodec(Int8Codec(64))),
        ("weights, int8(64)", PartialCodec(Int8Codec(64))),
    ],
)
def test_what_travels_is_said_by_codecs_and_by_dorefa_where_there_is_none(text: str, expected: object) -> None:
    assert compose(Plan.parse(text).wire) == expected


@pytest.mark.parametrize("text", ["alone, weights", "alone, dorefa", "alone, halp"])
def test_a_worker_by_itself_may_train_in_few_bits(text: str) -> None:
    assert check(Plan.parse(text), 1) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("weights, weights(frac=4)", "is the second weights of the plan; keep one"),
        ("halp, weights", "'halp(bits=8, mu=1.0, anchor=100, inner=200)' rounds the weights itself, so 'weights("),
        ("dorefa, halp", "so 'dorefa(w=1, a=2, g=6)' has no place beside it; keep one"),
        ("weights, by_size(5)", "goes around a codec and the plan has none"),
        ("alone, dorefa, int8", "'int8(1024)' says what travels, but 'alone' sends nothing"),
    ],
)
def test_what_makes_no_sense_is_refused_on_one_line(text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        check(Plan.parse(text), 2)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["dorefa(w=9)", "dorefa(a=0)", "dorefa(g=16)", "dorefa(w=1.5)", "halp(mu=0)", "halp(anchor=0)",
             "halp(bits=1)", "weights(bits=30)", "weights(rounding=up)"],
)  # fmt: skip
def test_arguments_out_of_range_are_refused_when_written(text: str) -> None:
    with pytest.raises(UsageError):
        Plan.parse(text)
