"""The largest elements: exactly as many as asked for, whatever the sample held, and never what is not finite."""

import numpy as np
import pytest
import torch

from shoal.wire import selection
from shoal.wire.layout import FlatLayout
from shoal.wire.selection import count_overall, max_count, wanted_count


def chosen(values, count, shift=0, rest=None):
    shares = count_overall(count / values.numel(), FlatLayout.flat(values.numel()))
    assert shares.rows[0, 2] == count
    return selection.select_largest(values, rest, shares, shift)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_told_wherever_it_lies(bad):
    for place in (0, 4000, 9999):
        values = torch.randn(10_000)
        values[place] = bad
        assert chosen(values, 10) is None
        assert chosen(torch.randn(10_000), 10, rest=values) is None


@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.1])
def test_as_many_are_chosen_as_were_asked_for(ratio):
    numel = 300_000
    count = wanted_count(ratio, numel)
    generator = torch.Generator().manual_seed(0)
    for shift in range(20):
        whole = torch.randn(numel, generator=generator)
        places, values = chosen(whole, count, shift)
        assert len(places) == count <= max_count(count, numel)
        assert (np.diff(places) > 0).all()
        assert (whole.numpy()[places] == values).all()
        assert np.abs(values).min() == whole.abs().topk(count).values[-1]


def test_the_sample_changes_nothing():
    whole = torch.randn(200_000)
    first = [array.copy() for array in chosen(whole, 200, 0)]
    for shift in range(1, 30):
        assert all((one == other).all() for one, other in zip(first, chosen(whole, 200, shift), strict=True))


def test_of_equal_ones_the_first_travel_and_of_zeros_none():
    assert chosen(torch.ones(50_000), 7)[0].tolist() == list(range(7))
    assert len(chosen(torch.zeros(50_000), 7)[0]) == 0
    few = torch.zeros(50_000)
    few[[3, 40_000]] = torch.tensor([-1.0, 2.0])
    assert chosen(few, 7)[0].tolist() == [3, 40_000]


def test_a_thread_keeps_its_memory():
    whole = torch.randn(100_000)
    one, other = chosen(whole, 100)[0], chosen(whole, 100, 1)[0]
    assert np.shares_memory(one, other)
