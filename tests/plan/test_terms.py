"""The table of terms: every row is complete and agrees with the unions that type checkers see."""

import typing

import pytest

from shoal.core.errors import UsageError
from shoal.plan import terms
from shoal.plan.terms import AXES, TERMS, EveryTerm, NamedTerm


@pytest.mark.parametrize(("name", "kind"), TERMS.items())
def test_a_row_names_its_class(name: str, kind: type[NamedTerm]) -> None:
    assert kind.name == name
    assert kind.axis in AXES


@pytest.mark.parametrize(
    ("axis", "union"), [("exchange", terms.Exchange), ("pace", terms.Pace), ("split", terms.Split)]
)
def test_the_unions_hold_what_the_table_holds(axis: str, union: object) -> None:
    members = typing.get_args(union) or (union,)
    assert set(members) == {kind for kind in TERMS.values() if kind.axis == axis}


def test_terms_are_frozen_and_hashable() -> None:
    with pytest.raises(AttributeError):
        EveryTerm().steps = 2  # type: ignore[misc]
    assert len({EveryTerm(), EveryTerm(1)}) == 1


@pytest.mark.parametrize("steps", [0, 2, -1, 1.0, True])
def test_every_agrees_at_every_step_only(steps: int) -> None:
    with pytest.raises(UsageError) as refused:
        EveryTerm(steps)
    assert str(refused.value) == (
        f"every({str(steps).lower()}): replicas agree at every step, so steps must be 1; write every(1)"
    )
