"""`deadline(…)`: its text, and what may stand beside it."""

import pytest

from shoal.core.errors import UsageError
from shoal.plan.plan import Plan
from shoal.plan.rules import check


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("deadline", "deadline(60.0)"),
        ("deadline(0.5, backups=1)", "deadline(0.5, backups=1)"),
        ("deadline(seconds=2, late=add, round=7, backups=0)", "deadline(2.0, late=add, round=7)"),
    ],
)
def test_its_text(text: str, canonical: str) -> None:
    plan = Plan.parse(f"server, {text}")
    assert str(plan) == f"server, {canonical}"
    assert Plan.parse(str(plan)) == plan


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("deadline(1)", "is for parameter servers; write server, deadline"),
        ("server, deadline(0)", "seconds"),
        ("server, deadline(1, backups=-1)", "backups"),
        ("server, deadline(1, late=never)", "late must be one of drop, add"),
        ("server, deadline(1, backups=2)", "with 2 workers: no step would wait for anybody"),
        ("server(shards=2), deadline(1)", "each server would choose for itself which pushes came in time"),
        ("server, deadline(1), balance(auto)", "a worker that leases its samples takes as many"),
        ("server, deadline(1), int8", "servers add up gradients as they are"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check(Plan.parse(text), 2)
