"""`datagrams`: its text, its limits, what may stand beside it, and what it sends."""

import re

import pytest

from shoal.core.errors import UsageError
from shoal.plan import Plan
from shoal.plan.rules import check
from shoal.plan.traffic import traffic


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("datagrams", "datagrams, every(1)"),
        ("datagrams(rate=100mbit)", "datagrams, every(1)"),
        ("datagrams(rate=2500kbit, steps=8)", "datagrams(rate=2500kbit, steps=8), every(1)"),
        ("dogwild", "datagrams, every(1)"),
    ],
)
def test_its_text(text: str, canonical: str) -> None:
    plan = Plan.parse(text)
    assert str(plan) == canonical
    assert Plan.parse(str(plan)) == plan


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("datagrams(rate=fast)", "'fast' is not a rate; write '100mbit'"),
        ("datagrams(rate=unlimited)", "rate must be from 100kbit to 100gbit"),
        ("datagrams(rate=9kbit)", "rate must be from 100kbit to 100gbit"),
        ("datagrams(steps=0)", "steps must be a whole number from 1 to 1000000"),
        ("datagrams, int8", "'int8(1024)' with 'datagrams': changes travel as they are"),
        ("datagrams, local(8)", "'local(8, average)' with 'datagrams': workers do not wait for each other there"),
        ("datagrams, balance(auto)", "changes of all count alike, whatever their share"),
        ("datagrams, allreduce", "both say how replicas agree"),
    ],
)
def test_its_limits(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        check(Plan.parse(text), 4)


def test_a_cycle_sends_all_changes_to_all_others() -> None:
    assert [traffic(Plan.parse("datagrams"), workers, 1000).sent for workers in (2, 4)] == [4000, 12000]
    assert "as often as its rate allows" in str(traffic(Plan.parse("datagrams"), 2, 1000))
