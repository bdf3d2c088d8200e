"""`order(...)` stands beside codecs, says one of four things, and is refused where it cannot be."""

import pytest

from shoal.core.errors import UsageError
from shoal.plan import Plan
from shoal.plan.explain import explain
from shoal.plan.order import OrderTerm
from shoal.plan.rules import check


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("order(ready)", "allreduce, every(1), order(ready)"),
        ("order(needed), fp16", "allreduce, every(1), order(needed), fp16"),
        ("order(largest, budget=1mb)", "allreduce, every(1), order(by=largest, budget=1mb)"),
        ("order(budget=500kb, by=largest)", "allreduce, every(1), order(by=largest, budget=500kb)"),
        ("order(auto)", "allreduce, every(1), order(auto)"),
        ("order()", "allreduce, every(1), order(ready)"),
    ],
)
def test_text_and_back(written: str, canonical: str) -> None:
    plan = Plan.parse(written)
    assert str(plan) == canonical
    assert Plan.parse(canonical) == plan


def test_without_the_term_first_come_is_first_served() -> None:
    assert Plan().order == OrderTerm("ready")
    assert Plan.parse("order(needed), topk(0.1), int8").order == OrderTerm("needed")
    assert [str(term) for term in Plan.parse("order(needed), topk(0.1), int8").codecs] == ["topk(0.1)", "int8(1024)"]
    assert Plan.parse("order(largest, 4kb)").order.limit == 4000


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("order(soon)", "by must be one of ready, needed, largest, auto"),
        ("order(largest)", "write order(largest, budget=1mb)"),
        ("order(largest, budget=1kb)", "from 4kb to 16gb"),
        ("order(largest, budget=1parsec)", "units: b, kb, mb, gb"),
        ("order(largest, budget=1000000)", "budget must be a word"),
        ("order(needed, budget=1mb)", "only 'largest' has a budget; write order(needed)"),
    ],
)
def test_what_is_no_order_is_refused_with_the_way_out(written: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        Plan.parse(written)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("order(needed), order(ready)", "both say what leaves first; keep one"),
        ("order(largest, 1mb), topk(0.1)", "both choose what travels"),
        ("order(needed), lowrank(2)", "something travels twice"),
        ("order(auto), wire(auto)", "something travels twice"),
        ("alone, order(needed)", "'alone' sends nothing"),
        ("order(needed), feedback(on)", "goes around a codec"),
    ],
)
def test_what_does_not_go_together_is_refused(written: str, said: str) -> None:
    with pytest.raises(UsageError, match=r".") as refused:
        check(Plan.parse(written), 2)
    assert said in str(refused.value)


def test_needed_says_that_a_loss_ends_the_run() -> None:
    (warning,) = check(Plan.parse("tictac"), 2)
    assert "there a loss takes the run back to its last checkpoint" in warning
    assert check(Plan.parse("tictac"), 1) == []
    assert check(Plan.parse("order(ready), int8"), 2) == []


def test_it_is_explained() -> None:
    text = str(explain(Plan.parse("tictac")))
    assert "known as tictac: Hashemi et al. 2019" in text
    assert "wire, what travels: order(needed)" in text
