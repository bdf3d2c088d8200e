"""Growth per second over a window."""

import pytest

from shoal.watch.rate import RateMeter


def test_the_rate_needs_two_moments() -> None:
    rate = RateMeter()
    assert rate.add(1.0, 100.0) == 0.0
    assert rate.add(1.0, 200.0) == 0.0
    assert rate.add(1.5, 200.0) == 200.0


def test_only_the_window_counts() -> None:
    rate = RateMeter(window=2.0)
    for tenth in range(100):
        rate.add(tenth / 10, 0.0)
    grown = [rate.add(10 + tenth / 10, 5.0 * tenth) for tenth in range(31)]
    assert grown[30] == pytest.approx(50.0)
    assert grown[10] == pytest.approx(25.0)


def test_a_total_that_shrinks_begins_anew() -> None:
    """A worker was lost, and the next one in its place counts from zero."""
    rate = RateMeter()
    rate.add(0.0, 100.0)
    assert rate.add(1.0, 200.0) == 100.0
    assert rate.add(1.5, 120.0) == 0.0
    assert rate.add(2.0, 150.0) == 60.0
