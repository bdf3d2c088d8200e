"""Every rule across parts, by itself and through `check`."""

import re

import pytest

from shoal.core.errors import UsageError
from shoal.plan import Plan
from shoal.plan.rules import check
from shoal.plan.terms import AloneTerm


def test_several_workers_alone_are_warned_about() -> None:
    warnings = check(Plan(exchange=AloneTerm()), 3)
    assert warnings == ["plan 'alone' never exchanges: 3 workers train 3 different models"]


@pytest.mark.parametrize(("plan", "workers"), [(Plan(exchange=AloneTerm()), 1), (Plan(), 1), (Plan(), 4)])
def test_ordinary_plans_pass_without_a_word(plan: Plan, workers: int) -> None:
    assert check(plan, workers) == []


@pytest.mark.parametrize(
    ("text", "workers", "said"),
    [
        ("balance(2:1:1)", 2, "'balance(2:1:1)' has 3 shares for 2 workers; give one for each worker"),
        ("alone, balance(auto)", 2, "'balance(auto)' makes workers wait less for each other"),
    ],
)
def test_shares_that_fit_nobody_are_refused(text: str, workers: int, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        check(Plan.parse(text), workers)


@pytest.mark.parametrize("workers", [0, -2])
def test_no_workers_are_refused(workers: int) -> None:
    with pytest.raises(UsageError, match=f"^{workers} workers cannot train; use 1 or more$"):
        check(Plan(), workers)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("factors(8), int8", "'int8(1024)' with 'factors(batch=8, workers=2)': what is not sent as factors is summed"),
        ("factors(8), order(needed)", "'order(needed)' with 'factors(batch=8, workers=2)': factors leave as they are"),
        ("factors(8), local(4)", "what passes through layers gives gradients"),
        ("factors(8), server", "servers add up gradients as they are"),
        ("factors(8), alone", "'alone' sends nothing"),
    ],
)
def test_factors_are_of_gradients_that_all_workers_sum(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        check(Plan.parse(text), 2)
