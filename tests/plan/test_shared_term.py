"""`shared`: its text, its limits, and what may stand beside it."""

import re

import pytest

from shoal.core.errors import UsageError
from shoal.plan import Plan
from shoal.plan.rules import check
from shoal.plan.switching import check_switch
from shoal.plan.traffic import traffic


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("shared", "shared, every(1)"),
        ("every(1), shared(steps=8)", "shared(steps=8), every(1)"),
        ("shared(8)", "shared(steps=8), every(1)"),
    ],
)
def test_its_text(text: str, canonical: str) -> None:
    plan = Plan.parse(text)
    assert str(plan) == canonical
    assert Plan.parse(canonical) == plan


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("shared(steps=0)", "steps must be a whole number from 1 to 1000000"),
        ("shared, allreduce", "both say how replicas agree"),
        ("shared, int8", "'int8(1024)' says what travels, but under 'shared' nothing does; remove it"),
        ("shared, order(needed)", "'order(needed)' says what travels"),
        ("shared, local(4)", "'local(4, average)' says when replicas agree, but 'shared' has one copy for all"),
        ("shared, balance(auto)", "'balance(auto)' is for workers that wait in every step"),
    ],
)
def test_what_it_refuses(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        check(Plan.parse(text), 2)


def test_nothing_travels() -> None:
    assert traffic(Plan.parse("shared"), 8).sent == 0


def test_a_running_job_is_not_switched_to_it() -> None:
    with pytest.raises(UsageError, match="is neither an all-reduce"):
        check_switch(Plan(), Plan.parse("shared"), 2)
