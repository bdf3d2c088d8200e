"""The order of an epoch is a pure function of its coordinates."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from shoal.data.order import order

numbers = st.integers(0, 2**31)


@given(numbers, numbers, st.integers(0, 3), st.integers(0, 50))
def test_is_a_permutation_and_reproducible(seed, epoch, turn, size):
    found = order(seed, epoch, turn, size)
    assert sorted(found) == list(range(size))
    assert found == order(seed, epoch, turn, size)


def test_every_coordinate_matters():
    orders = [order(*where, 50) for where in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))]
    assert len({tuple(found) for found in orders}) == 4


def test_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    order(0, 0, 0, 50)
    assert torch.equal(before, torch.get_rng_state())
