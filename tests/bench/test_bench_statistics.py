"""Medians, ratios, intervals and turns on numbers that can be checked by hand."""

import pytest

from shoal.bench.statistics import MedianSpread, interval, ratios, spread
from shoal.bench.turns import turns


def test_spread() -> None:
    assert spread([]) is None
    assert spread([2.0]) == MedianSpread(2.0, 2.0, 2.0, 1)
    assert spread([5.0, 1.0, 3.0, 2.0, 4.0]) == MedianSpread(3.0, 2.0, 4.0, 5)


def test_ratios_are_paired_by_repeat() -> None:
    assert ratios({0: 2.0, 1: 20.0, 3: 5.0}, {0: 1.0, 1: 10.0, 2: 7.0}) == [2.0, 2.0]
    assert ratios({0: 2.0}, {0: 0.0}) == []


def test_the_interval_of_a_mean() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert found is not None
    assert found.mean == 2.0
    assert found.high - 2.0 == pytest.approx(4.303 / 3**0.5)
    assert found.low == pytest.approx(4.0 - found.high)
    alone = interval([7.0])
    assert alone is not None
    assert (alone.low, alone.high) == (7.0, 7.0)
    assert interval([]) is None


def test_turns_are_reversed_in_every_other_repeat() -> None:
    order = [(repeat, name) for repeat, name in turns(["a", "b", "c"], 3)]
    assert [name for _, name in order] == [*"abc", *"cba", *"abc"]
    assert [repeat for repeat, _ in order] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
