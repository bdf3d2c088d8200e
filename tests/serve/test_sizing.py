"""The size of batches follows a latency goal: additive increase, multiplicative decrease."""

import pytest

from shoal.serve.sizing import BatchSizer, BatchTimes, FixedSizer


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
        sizer.observe(sizer.rows, 9.0)
    assert sizer.rows == 1


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
