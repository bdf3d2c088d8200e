"""However many steps there are, a page keeps some hundred blocks, and loses no total."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from shoal.watch.page.series import StepBlocks, rounded, totals


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=200))
def test_sums_stay_whatever_the_width(steps: list[int]) -> None:
    blocks = StepBlocks(1, most=16)
    for step in steps:
        blocks.add(step, 1, [2.0])
    assert len(blocks.weights) <= 16
    assert sum(blocks.weights) == len(steps)
    assert sum(blocks.sums[0]) == 2.0 * len(steps)
    assert set(blocks.means(0)) <= {2.0, None}


def test_a_value_lies_in_the_block_of_its_step() -> None:
    blocks = StepBlocks(1, most=4)
    for step in range(10):
        blocks.add(step, 1, [float(step)])
    assert (blocks.width, blocks.steps()) == (4, [0, 4, 8])
    assert blocks.means(0) == [1.5, 5.5, 8.5]


def test_totals_of_workers_with_different_widths_are_added_up() -> None:
    long, short = StepBlocks(1, most=4), StepBlocks(1, most=4)
    for step in range(8):
        long.add(step, 1, [1.0])
    for step in range(2):
        short.add(step, 1, [10.0])
    assert totals([long, short], 0) == (2, [22.0, 24.0, 26.0, 28.0])


def test_steps_that_were_not_read_count_like_those_before() -> None:
    blocks = StepBlocks(1)
    blocks.add(0, 1, [3.0])
    blocks.add(4, 1, [3.0])
    _, found = totals([blocks], 0)
    assert found == [3.0, 6.0, 9.0, 12.0, 15.0]
    assert all(a < b for a, b in pairwise(found))


def test_what_is_no_number_is_null_in_json() -> None:
    assert [rounded(float("nan")), rounded(float("inf")), rounded(0.123456789)] == [None, None, 0.123457]
