"""`stale(…)` and `async(…)`: their text, and what may stand beside them."""

import pytest

from shoal.core.errors import UsageError
from shoal.plan.plan import Plan
from shoal.plan.rules import check


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("stale", "stale(3)"),
        ("stale(bound=2, eager=false)", "stale(2)"),
        ("stale(3, samples=leased, eager=true)", "stale(3, eager=true, samples=leased)"),
        ("stale(3, rates=adaptive)", "stale(3, rates=adaptive)"),
        ("async(samples=static)", "async"),
        ("async(speculate=0.50)", "async(speculate=0.5)"),
        ("async(samples=leased, round=7)", "async(samples=leased, round=7)"),
    ],
)
def test_its_text(text: str, canonical: str) -> None:
    plan = Plan.parse(f"server, {text}")
    assert str(plan) == f"server, {canonical}"
    assert Plan.parse(str(plan)) == plan


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("server, async(samples=leased), balance(auto)", "a worker that leases its samples takes as many"),
        ("server, stale(0, rates=adaptive)", "with bound 0 no push is stale"),
        ("server, async(speculate=-1)", "speculate must be a number from 0 to 100"),
        ("server, stale(samples=often)", "samples must be one of static, leased"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check(Plan.parse(text), 2)
