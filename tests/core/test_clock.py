"""Deadlines."""

import pytest

from shoal.core import clock
from shoal.core.clock import Deadline


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The moment it is; tests move it by hand."""
    moment = [100.0]
    monkeypatch.setattr(clock, "now", lambda: moment[0])
    return moment


def test_what_is_left_shrinks_to_nothing(at: list[float]) -> None:
    deadline = Deadline.after(2.0)
    assert (deadline.left, deadline.budget, deadline.expired) == (2.0, 2.0, False)
    at[0] = 101.5
    assert (deadline.left, deadline.expired) == (0.5, False)
    at[0] = 102.0
    assert (deadline.left, deadline.expired) == (0.0, True)
    at[0] = 999.0
    assert (deadline.left, deadline.budget, deadline.expired) == (0.0, 2.0, True)


def test_a_deadline_cannot_be_moved() -> None:
    with pytest.raises(AttributeError):
        Deadline.after(1.0).at = 5.0  # type: ignore[misc]


def test_the_clock_never_goes_back() -> None:
    moments = [clock.now() for _ in range(100)]
    assert moments == sorted(moments)
