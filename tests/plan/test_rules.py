"""Every rule across parts, by itself and through `check`."""

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


@pytest.mark.parametrize("workers", [0, -2])
def test_no_workers_are_refused(workers: int) -> None:
    with pytest.raises(UsageError, match=f"^{workers} workers cannot train; use 1 or more$"):
        check(Plan(), workers)
