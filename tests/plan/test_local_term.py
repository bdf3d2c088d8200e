"""`local(steps, outer)`: its text, its limits, what may stand beside it, and what it sends."""

import re

import pytest

from shoal.core.errors import UsageError
from shoal.plan import Plan
from shoal.plan.rules import check
from shoal.plan.terms import LocalTerm
from shoal.plan.traffic import traffic


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("local", "local(16, average)"),
        ("local(4)", "local(4, average)"),
        ("local(outer=diloco, steps=8)", "local(8, diloco)"),
        ("local(500, diloco, rate=1, momentum=0)", "local(500, diloco, rate=1.0, momentum=0.0)"),
        ("local(10, easgd, alpha=0.1)", "local(10, easgd, alpha=0.1)"),
        ("local(1, sma, momentum=0.5)", "local(1, sma, momentum=0.5)"),
        ("local(32, bmuf, momentum=0.75, state=reset)", "local(32, bmuf, momentum=0.75, state=reset)"),
        ("local(auto, diloco)", "local(auto, diloco)"),
        ("local(8, samples=leased)", "local(8, average, samples=leased)"),
        ("local(8, samples=static)", "local(8, average)"),
        ("local(8, samples=leased, end=fastest)", "local(8, average, samples=leased, end=fastest)"),
        ("local(5, state=average)", "local(5, average, state=average)"),
        ("local(32, overlap=true, fragments=1)", "local(32, average, overlap=true)"),
        ("local(30, diloco, fragments=3, overlap=false)", "local(30, diloco, fragments=3)"),
    ],
)
def test_its_text(text: str, canonical: str) -> None:
    plan = Plan.parse(text)
    assert str(plan) == f"allreduce, {canonical}"
    assert Plan.parse(str(plan)) == plan


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("local(auto, samples=leased)", "write local(8, average, samples=leased), without overlap"),
        ("local(8, samples=leased, overlap=true)", "write local(8, average, samples=leased), without overlap"),
        ("local(8, end=fastest)", "write local(8, average, samples=leased, end=fastest)"),
        ("local(0)", "local(steps=0): steps must be a whole number from 1 to 1000000"),
        ("local(1.5)", "local(steps=1.5): steps must be a whole number or auto; write local(16, diloco"),
        ("local(often)", "local(steps=often): steps must be a whole number or auto"),
        ("local(auto, fragments=2)", "auto measures rounds that are waited for; write local(16, average)"),
        ("local(auto, overlap=true, state=average)", "auto measures rounds"),
        ("local(4, adam)", "outer must be one of average, bmuf, diloco, easgd, sma"),
        ("local(4, diloco, alpha=0.5)", "diloco has no alpha; write local(4, easgd, alpha=0.5)"),
        ("local(4, easgd, momentum=0.5)", "easgd has no momentum; write local(4, diloco, momentum=0.5)"),
        ("local(4, sma, alpha=2)", "local(alpha=2.0): alpha must be a number from 1e-06 to 1"),
        ("local(4, average, rate=0.5)", "average has no rate; write local(4, diloco, rate=0.5)"),
        ("local(4, diloco, momentum=1)", "local(momentum=1.0): momentum must be a number from 0 to 0.9999"),
        ("local(4, diloco, rate=fast)", "rate must be a number"),
        ("local(4, overlap=yes)", "local(overlap=yes): overlap must be true or false"),
        ("local(4, fragments=0)", "local(fragments=0): fragments must be a whole number from 1 to 1024"),
        ("local(16, fragments=3)", "cannot be cut into 3 equal parts; write local(15, average, fragments=3)"),
        ("local(2, fragments=3)", "write local(3, average, fragments=3)"),
        ("local(4, sma, overlap=true)", "sma needs rounds of all parameters that end before the next step"),
        ("local(4, fragments=2, state=reset)", "state=reset needs rounds of all parameters"),
        ("local(4), every(1)", "both say when replicas agree"),
    ],
)
def test_its_limits(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        Plan.parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("alone, local(4)", "'local(4, average)' says when replicas agree, but under 'alone' they never do"),
        ("local(4), order(needed)", "nothing leaves while a backward pass runs"),
        ("local(4), dgc(0.01)", "its momentum is for gradients"),
        ("local(4), topk(0.01), momentum(0.9)", "its momentum is for gradients"),
        ("local(4), topk(0.01), guard(0.9)", "it compares gradients of single steps"),
        ("local(4), wire(auto)", "write a codec: int8"),
        ("local(4, samples=leased), balance(auto)", "takes as many as it can train; keep one of the two"),
        ("local(4), weights(bits=8, frac=4)", "replicas would leave the grid"),
    ],
)
def test_what_has_no_place_beside_it(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        check(Plan.parse(text), 2)


@pytest.mark.parametrize(
    "wire", ["int8", "topk(0.01)", "lowrank(4)", "onebit, meet(twostage)", "topk(0.01), int8", "balance(2:1)"]
)
def test_what_may_stand_beside_it(wire: str) -> None:
    assert check(Plan.parse(f"local(8, diloco), {wire}"), 2) == []


def test_a_centre_that_overshoots_is_warned_of() -> None:
    (warning,) = check(Plan.parse("local(10, easgd, alpha=0.5)"), 4)
    assert "moves the centre 2 times as far as the mean of the replicas is" in warning
    assert "write alpha=0.25 or less" in warning
    assert check(Plan.parse("local(10, easgd, alpha=0.25)"), 4) == []


def test_bytes_of_a_round_and_of_a_step() -> None:
    every, local = traffic(Plan(), 4), traffic(Plan(pace=LocalTerm(16)), 4)
    assert (local.sent, local.steps) == (every.sent, 16)
    assert f"{local.sent:,} bytes a round of 16 steps, {local.sent // 16:,} a step" in str(local)
    assert f"{every.sent:,} bytes a step" in str(every)


def test_an_exchange_of_a_fragment_sends_its_part() -> None:
    whole, part = traffic(Plan(pace=LocalTerm(16)), 4), traffic(Plan(pace=LocalTerm(16, fragments=4)), 4)
    assert (part.sent, part.steps) == (whole.sent / 4, 4)
