"""`mix(butterfly)`: its text, its limits, what may stand beside it, and what it sends."""

import re

import pytest

from shoal.core.errors import UsageError
from shoal.plan import Plan
from shoal.plan.rules import check
from shoal.plan.traffic import traffic


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("mix", "mix(butterfly), every(1)"),
        ("mix(butterfly)", "mix(butterfly), every(1)"),
        ("mix(steps=8)", "mix(butterfly, steps=8), every(1)"),
        ("butterfly", "mix(butterfly), every(1)"),
    ],
)
def test_its_text(text: str, canonical: str) -> None:
    plan = Plan.parse(text)
    assert str(plan) == canonical
    assert Plan.parse(str(plan)) == plan


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mix(ring)", "by must be one of butterfly"),
        ("mix(butterfly, steps=0)", "steps must be a whole number from 1 to 1000000"),
        ("mix, int8", "'int8(1024)' with 'mix(butterfly)': parameters travel as they are"),
        ("mix, local(8)", "'local(8, average)' with 'mix(butterfly)': partners mix after every step"),
        ("mix, order(needed)", "after the step; remove it"),
        ("mix, balance(auto)", "replicas are mixed alike, whatever their share"),
        ("mix, allreduce", "both say how replicas agree"),
    ],
)
def test_its_limits(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        check(Plan.parse(text), 4)


def test_a_worker_sends_its_parameters_once_whatever_the_number_of_workers() -> None:
    found = [traffic(Plan.parse("mix"), workers, 1000) for workers in (2, 4, 64)]
    assert [each.sent for each in found] == [4000] * 3
    assert "a worker sends its parameters to one partner" in str(found[0])
