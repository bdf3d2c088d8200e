"""The size of batches follows a latency goal: additive increase, multiplicative decrease."""

import random

import pytest

from shoal.serve.sizing import LONG_MEMORY, BatchSizer, BatchTimes, FixedSizer


def test_full_quick_batches_raise_the_limit_and_slow_ones_lower_it() -> None:
    sizer = BatchSizer(goal=0.1, most=100)
    for expected in (2, 4, 8):
        sizer.observe(sizer.rows, 0.01)
        assert sizer.rows == expected
    sizer.observe(8, 0.06)
    assert sizer.limit == pytest.approx(7.2)
    sizer.observe(7, 0.01)
    assert sizer.limit == pytest.approx(8.2)


def test_a_batch_that_was_not_full_says_nothing() -> None:
    sizer = BatchSizer(goal=0.1, most=100, limit=10.0)
    sizer.observe(3, 0.01)
    assert sizer.limit == 10.0


def test_a_slow_batch_lowers_from_what_it_had() -> None:
    sizer = BatchSizer(goal=0.1, most=1000, limit=500.0)
    sizer.observe(20, 0.2)
    assert sizer.limit == pytest.approx(18.0)


def test_the_limit_stays_within_bounds() -> None:
    sizer = BatchSizer(goal=0.1, most=4)
    for _ in range(9):
        sizer.observe(sizer.rows, 0.01)
    assert sizer.rows == 4
    for _ in range(99):
        sizer.observe(sizer.rows, 9.0 * sizer.rows)
    assert sizer.rows == 1


def test_batches_that_are_slow_whatever_their_size_are_not_made_smaller() -> None:
    """Other processes have the cores: a batch of one would wait for them as long as a batch of many."""
    sizer = BatchSizer(goal=0.1, most=64)
    for _ in range(99):
        sizer.observe(sizer.rows, 0.07 + 0.0001 * sizer.rows)
    assert sizer.rows == 64


def test_batches_that_are_slow_by_their_samples_are_made_smaller_where_a_batch_costs_much_too() -> None:
    """At 30 ms for a batch and 5 ms for a sample 6 samples cost as much as the batch: there it stays, near the goal."""
    sizer = BatchSizer(goal=0.1, most=1024)
    for _ in range(200):
        sizer.observe(sizer.rows, 0.03 + 0.005 * sizer.rows)
    assert 3 <= sizer.rows <= 8


def test_noise_is_not_held_against_the_samples() -> None:
    chance, times = random.Random(5), BatchTimes(LONG_MEMORY)
    for _ in range(300):
        times.observe(chance.randint(20, 32), chance.expovariate(1 / 0.07))
    assert times.fixed >= 0.7 * times.seconds
    for _ in range(300):
        rows = chance.randint(20, 32)
        times.observe(rows, 0.003 * rows * chance.uniform(0.8, 1.2))
    assert times.fixed <= 0.3 * times.seconds


def test_a_fixed_size_learns_nothing() -> None:
    sizer = FixedSizer(5)
    sizer.observe(5, 99.0)
    assert sizer.rows == 5


def test_times_of_batches_are_a_line_over_their_samples() -> None:
    times = BatchTimes()
    assert times.predict(5) == 0.0
    times.observe(1, 0.05)
    assert times.predict(40) == pytest.approx(0.05)  # nothing is known of larger ones, so they are tried
    for rows in (8, 40, 3, 20) * 9:
        times.observe(rows, 0.04 + 0.004 * rows)
    assert times.predict(30) == pytest.approx(0.16, rel=0.05)


def test_times_that_shrink_with_the_size_are_taken_as_constant() -> None:
    times = BatchTimes()
    for rows, seconds in ((1, 0.5), (10, 0.1)) * 5:
        times.observe(rows, seconds)
    assert times.predict(100) == pytest.approx(times.seconds)
