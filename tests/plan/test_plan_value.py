"""The plan: its text, its round trip, and what it refuses."""

from random import Random

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.core.errors import UsageError
from shoal.plan import Plan
from shoal.plan.presets import PRESETS
from shoal.plan.terms import TERMS, AllReduceTerm, AloneTerm, Axis, CodecTerm, EveryTerm, PlanTerm, ReplicateTerm

Terms = st.SearchStrategy[PlanTerm]


def terms(axis: Axis) -> Terms:
    return st.sampled_from([kind() for kind in TERMS.values() if kind.axis == axis])


plans = st.builds(Plan, exchange=terms("exchange"), pace=terms("pace"), split=terms("split"))
space = st.text(" \t\n", max_size=3)
# Texts that come close to plans: pieces of the language in any order.
nearly = st.lists(
    st.sampled_from(
        [*TERMS, *PRESETS, "steps", "=", "(", ")", ",", " ", "1", "2", "1.5", "-", "1e400", "x", "\n", "é"]
    ),
    max_size=12,
).map("".join)


def test_the_default_is_allreduce_at_every_step() -> None:
    assert Plan() == Plan(exchange=AllReduceTerm(), pace=EveryTerm(1), wire=(), split=ReplicateTerm())
    assert str(Plan()) == "allreduce, every(1)"


@pytest.mark.parametrize(
    ("text", "plan"),
    [
        ("every", Plan()),
        ("every()", Plan()),
        ("every(steps=1), replicate", Plan()),
        ("replicate,every( 1 ),\nalone", Plan(exchange=AloneTerm())),
        ("bsp", Plan()),
        (" horovod ", Plan()),
    ],
)
def test_reads(text: str, plan: Plan) -> None:
    assert Plan.parse(text) == plan


@settings(deadline=None)
@given(plans)
def test_every_plan_reads_back_from_its_text_and_from_json(plan: Plan) -> None:
    assert Plan.parse(str(plan)) == plan
    assert hash(Plan.parse(str(plan))) == hash(plan)
    assert msgspec.json.decode(msgspec.json.encode(plan), type=Plan) == plan


@settings(deadline=None)
@given(plans, st.randoms(use_true_random=False), space)
def test_order_and_white_space_mean_nothing(plan: Plan, random: Random, gap: str) -> None:
    written = [str(term) for term in plan.terms]
    random.shuffle(written)
    text = f"{gap},{gap}".join(written)
    assert Plan.parse(f"{gap}{text}{gap}".replace("(", f"{gap}({gap}")) == plan


def parsed_or_refused(text: str) -> Plan | str:
    try:
        return Plan.parse(text)
    except UsageError as refused:
        return str(refused)


@settings(deadline=None, max_examples=120)
@given(st.text(max_size=60) | nearly)
@example("every(\ud800)")
@example("a" * 999)
@example(f"every({'9' * 900})")
@example(f"every({'9' * 900}.0)")
def test_any_text_is_a_plan_or_is_refused_on_one_line(text: str) -> None:
    outcome = parsed_or_refused(text)
    if isinstance(outcome, Plan):
        assert Plan.parse(str(outcome)) == outcome
    else:
        assert outcome
        assert outcome.isprintable()  # so it holds no line break either


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("allredcue", "unknown term 'allredcue'; did you mean 'allreduce'?"),
        ("Alone", "unknown term 'Alone'; did you mean 'alone'?"),
        ("horovd", "unknown term 'horovd'; did you mean 'horovod'?"),
        (
            "xyz",
            f"unknown term 'xyz'; terms are {', '.join(TERMS)}; named plans are {', '.join(PRESETS)}",
        ),
        ("allreduce, alone", "'allreduce' and 'alone' both say how replicas agree (exchange); keep one"),
        ("every, every(1)", "'every(1)' and 'every(1)' both say when replicas agree (pace); keep one"),
        ("every(2)", "every(2): replicas agree at every step, so steps must be 1; write every(1)"),
        ("every(step=1)", "every: unknown argument 'step'; did you mean 'steps'?"),
        ("every(1, steps=1)", "every: argument 'steps' is given twice; keep one"),
        ("replicate(2)", "replicate takes no arguments; write replicate"),
        ("bsp, alone", "'bsp' is a named plan and stands alone; write its terms: allreduce, every(1)"),
        ("bsp(1)", "'bsp' is a named plan and takes no arguments; write bsp"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        Plan.parse(text)
    assert str(refused.value) == message


def test_a_plan_holds_only_terms_on_their_axes() -> None:
    with pytest.raises(UsageError, match="pace: 'alone' says how replicas agree; write it under exchange"):
        Plan(pace=AloneTerm())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="exchange: 'alone' is not a term"):
        Plan(exchange="alone")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is not a term"):
        Plan(wire=(CodecTerm(),))
