"""The explanation: every term says what it does, costs and is not for."""

import pytest

from shoal.plan import Plan
from shoal.plan.explain import about, explain
from shoal.plan.terms import AXES, TERMS, AllReduceTerm, AloneTerm, NamedTerm


@pytest.mark.parametrize("kind", TERMS.values())
def test_every_term_says_what_it_does_costs_and_is_not_for(kind: type[NamedTerm]) -> None:
    said = about(kind)
    assert said.does
    assert said.costs
    assert said.avoid


def test_a_label_takes_its_continued_lines_and_no_more() -> None:
    said = about(AllReduceTerm)
    assert said.costs == (
        "with p workers, each sends 2(p-1)/p of the gradient bytes between hosts, straight p-1 times, in a tree "
        "up to 3 times, in a chain 2 times, the middle of a star p-1 times, in a butterfly log2(p) times, along "
        "edges once for each edge that it has; inside one host nothing crosses a socket."
    )
    assert said.cites.startswith("Patarasuk & Yuan 2009")


def test_all_axes_are_explained_in_order() -> None:
    explanation = explain(Plan())
    assert [part.axis for part in explanation.parts] == list(AXES)
    assert [part.term for part in explanation.parts] == ["allreduce", "every(1)", "", "replicate", "balance(even)"]


def test_names_are_the_presets_that_mean_this_plan() -> None:
    assert explain(Plan()).names == ["bsp", "horovod", "singa-allreduce"]
    assert explain(Plan(exchange=AloneTerm())).names == []


def test_the_text_shows_terms_sources_and_costs() -> None:
    text = str(explain(Plan.parse("horovod")))
    assert text.startswith("plan: allreduce, every(1)\nknown as bsp: Valiant 1990")
    assert "exchange, how replicas agree: allreduce\n  does   " in text
    assert "2(p-1)/p" in text
    assert max(map(len, text.splitlines())) <= 120
