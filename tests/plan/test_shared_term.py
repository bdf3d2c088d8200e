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
        ("local(4), shared", "shared, local(4, average)"),
        ("h2o", "shared, local(16, average)"),
        ("shared(8, 2)", "shared(steps=8, clusters=2), every(1)"),
        ("shared(hold=4, clusters=2)", "shared(clusters=2, hold=4), every(1)"),
        ("hogwildpp", "shared(clusters=2), every(1)"),
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
        ("shared(clusters=0)", "clusters must be a whole number from 1 to 64"),
        ("shared(clusters=3)", "'shared(clusters=3)' has more clusters than the 2 workers; write clusters=2 or less"),
        ("shared(hold=2)", "'shared(hold=2)' has one copy and no token to hold; write clusters=2, or remove hold"),
        ("shared(clusters=2), local(4)", "each host has one copy whose change is averaged; write shared, local(4,"),
        ("shared, allreduce", "both say how replicas agree"),
        ("shared, int8", "'int8(1024)' says what travels, but under 'shared' nothing does; remove it"),
        ("shared, order(needed)", "'order(needed)' says what travels"),
        ("shared, stale(4)", "'stale(4)' is for parameter servers"),
        ("shared(8), local(4)", "the copies are averaged after the steps of local; write shared, local(4, average)"),
        ("shared, local(4, sma)", "sma keeps replicas different, and a host has one copy for all its workers; write"),
        ("shared, local(auto)", "auto measures workers that have a replica each; write shared, local(8, average)"),
        ("shared, local(4, overlap=true)", "a round begins where all have stopped to write"),
        ("shared, local(4, state=average)", "state=average is for optimizers of one worker"),
        ("shared, local(4), balance(auto)", "under 'shared' remove it"),
        ("shared, balance(auto)", "'balance(auto)' is for workers that wait in every step"),
    ],
)
def test_what_it_refuses(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        check(Plan.parse(text), 2)


def test_what_travels() -> None:
    """Nothing, but between hosts that have a copy each what local steps send."""
    assert traffic(Plan.parse("shared"), 8).sent == 0
    assert traffic(Plan.parse("shared, local(16)"), 8).sent == traffic(Plan.parse("local(16)"), 8).sent > 0
    assert not check(Plan.parse("shared, local(16, diloco), int8"), 8)


@pytest.mark.parametrize("text", ["shared", "shared, local(16)"])
def test_no_running_job_is_switched_to_it_or_from_it(text: str) -> None:
    for plans in ((Plan(), Plan.parse(text)), (Plan.parse(text), Plan())):
        with pytest.raises(UsageError, match="its workers share one copy of the parameters, which is not handed over"):
            check_switch(*plans, 2)
