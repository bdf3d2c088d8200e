"""Arguments meet fields. The terms of this file exist only here, to have every kind of argument."""

from collections.abc import Iterator
from typing import ClassVar, Literal
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import UsageError
from shoal.plan.explain import explain
from shoal.plan.plan import Plan
from shoal.plan.terms import TERMS, CodecTerm


class Keep(CodecTerm, frozen=True):
    """Keeps a fraction of the values."""

    name: ClassVar[str] = "keep"
    fraction: float


class Round(CodecTerm, frozen=True):
    """Rounds to some bits."""

    name: ClassVar[str] = "round"
    bits: int = 8
    how: Literal["nearest", "random"] = "nearest"


@pytest.fixture(autouse=True, scope="module")
def _two_codecs() -> Iterator[None]:
    with patch.dict(TERMS, {"keep": Keep, "round": Round}):
        yield


def test_a_row_in_the_table_is_all_a_codec_needs() -> None:
    plan = Plan.parse("round(4, how=random), alone, keep(1)")
    assert plan.wire == (Round(4, "random"), Keep(1.0))
    assert str(plan) == "alone, every(1), round(bits=4, how=random), keep(1.0)"
    assert [part.term for part in explain(plan).parts][2:4] == ["round(bits=4, how=random)", "keep(1.0)"]


@settings(deadline=None)
@given(
    st.lists(
        st.builds(Keep, st.floats(allow_nan=False, allow_infinity=False))
        | st.builds(Round, st.integers(-99, 99), st.sampled_from(["nearest", "random"])),
        max_size=8,
    )
)
def test_a_chain_keeps_its_order_and_its_numbers(chain: list[CodecTerm]) -> None:
    plan = Plan(wire=tuple(chain))
    assert Plan.parse(str(plan)) == plan


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keep", "keep: argument 'fraction' is missing; write keep(fraction)"),
        ("keep(x)", "keep(fraction=x): fraction must be a number; write keep(fraction)"),
        ("keep(1, 2)", "keep: 2 arguments are too many; write keep(fraction)"),
        ("keep(fractoin=1)", "keep: unknown argument 'fractoin'; did you mean 'fraction'?"),
        ("keep(zzz=1)", "keep: unknown argument 'zzz'; write keep(fraction)"),
        ("keep(1, fraction=1)", "keep: argument 'fraction' is given twice; keep one"),
        ("round(bits=1, bits=1)", "round: argument 'bits' is given twice; keep one"),
        ("round(4.0)", "round(bits=4.0): bits must be a whole number; write round(bits=8, how=nearest)"),
        (
            "round(how=up)",
            "round(how=up): how must be one of nearest, random; write round(bits=8, how=nearest)",
        ),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        Plan.parse(text)
    assert str(refused.value) == message
