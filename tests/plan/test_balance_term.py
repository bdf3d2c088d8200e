"""The term that says how much of every batch each worker computes."""

import pytest

from shoal.core.errors import UsageError
from shoal.plan.balance import EVEN, BalanceTerm
from shoal.plan.plan import Plan


def test_it_is_written_only_where_it_says_something() -> None:
    assert str(Plan.parse("balance(even)")) == str(Plan())
    assert str(Plan.parse("balance")) == "allreduce, every(1), balance(auto)"
    assert Plan.parse("balance(2:1:1)").balance.ratio == (2, 1, 1)
    assert Plan().balance == EVEN


@pytest.mark.parametrize("shares", ["", "2", "2:x", "0:1", "65:1", "1:2:", "fast"])
def test_other_shares_are_refused(shares: str) -> None:
    with pytest.raises(UsageError, match="share"):
        BalanceTerm(shares)


def test_a_ratio_reads_back_the_same() -> None:
    plan = Plan.parse("fp16, balance(3:1)")
    assert Plan.parse(str(plan)) == plan
