"""Trees written as edges: what is refused, and what becomes of them when nodes are lost."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import UsageError
from shoal.core.tree_edges import read_edges, tree_over


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0-1:1-2:2-0", "edges=0-1:1-2:2-0: 2-0 closes a loop; leave it out"),
        ("0-0", "0-0 closes a loop"),
        ("0-1:1-0", "1-0 closes a loop"),
        ("0-1:2-3", "worker 2 is not connected to worker 0; add an edge"),
        ("0-2", "worker 1 is not connected to worker 0"),
        ("0-9999", "worker 9999 is above 4095"),
        ("0-1-2", "an edge is two workers"),
    ],
)
def test_what_is_no_tree_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        read_edges(text)


def test_a_tree_is_rooted_at_worker_0() -> None:
    assert tree_over(read_edges("2-1:1-0:3-1"), [0, 1, 2, 3]) == {0: None, 1: 0, 2: 1, 3: 1}


def test_the_neighbours_of_a_lost_worker_are_joined() -> None:
    assert tree_over(read_edges("0-1:1-2:1-3"), [0, 2, 3]) == {0: None, 2: 0, 3: 0}
    assert tree_over(read_edges("0-1:0-2:0-3"), [1, 2, 3, 7]) == {1: None, 2: 1, 3: 1, 7: 1}


@given(st.data())
def test_whoever_is_left_is_a_tree(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 9))
    pairs = [(data.draw(st.integers(0, node - 1)), node) for node in range(1, size)]
    present = sorted(data.draw(st.sets(st.integers(0, size + 1), min_size=1)))
    parents = tree_over(read_edges(":".join(f"{a}-{b}" for a, b in pairs)), present)
    assert sorted(parents) == present
    for node in present:
        path = [node]
        while (parent := parents[path[-1]]) is not None:
            assert parent not in path
            path.append(parent)
        assert path[-1] == present[0]
