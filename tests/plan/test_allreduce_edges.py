"""`allreduce(edges=…)`: its text, what is refused, and what it sends."""

import re

import pytest

from shoal.core.errors import UsageError
from shoal.plan import Plan
from shoal.plan.rules import check
from shoal.plan.traffic import traffic


@pytest.mark.parametrize("text", ["allreduce(edges=0-1)", "allreduce(edges=0-1:1-2:1-3)"])
def test_a_tree_is_written_as_its_edges(text: str) -> None:
    assert str(Plan.parse(text).exchange) == text
    assert Plan.parse(str(Plan.parse(text))) == Plan.parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("allreduce(edges=0-1:1-0)", "1-0 closes a loop"),
        ("allreduce(tree, edges=0-1)", "both say how sums are made; keep one"),
        ("allreduce(edges=tree)", "an edge is two workers"),
        ("allreduce(edges=0-1:1-2)", "is a tree of 3, and there are 2 workers"),
    ],
)
def test_edges_that_are_no_tree_of_the_workers_are_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        check(Plan.parse(text), 2)


def test_edges_send_as_often_as_a_worker_has_some() -> None:
    assert traffic(Plan.parse("allreduce(edges=0-1:1-2:1-3)"), 4, 10).sent == 3 * 40
