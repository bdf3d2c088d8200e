"""A coordinator that fails is started again ever later, and the user is told once."""

from itertools import pairwise

import pytest

from shoal.membership import handle
from shoal.membership.handle import CALM, LONGEST, CoordinatorOutage

WHY = "No space left on device"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time = [100.0]
    monkeypatch.setattr(handle, "now", lambda: time[0])
    return time


def test_it_is_started_again_ever_later(clock: list[float]) -> None:
    one, starts = CoordinatorOutage(), list[float]()
    while clock[0] < 200.0:
        if one.over:
            starts.append(clock[0])
            one.failed(WHY, "members.log")
        clock[0] += 0.5
    pauses = [b - a for a, b in pairwise(starts)]
    assert pauses[:5] == [1.0, 2.0, 4.0, 8.0, LONGEST]
    assert set(pauses[5:]) == {LONGEST}


def test_the_user_is_told_once_for_each_outage(clock: list[float]) -> None:
    one, told = CoordinatorOutage(), list[str]()
    for calm in (0.0, 20.0, 20.0, CALM):
        clock[0] += calm
        assert one.over
        clock[0] += calm
        one.failed(WHY, "members.log")
        told += filter(None, [one.note])
        one.note = ""
    assert len(told) == 2
    assert told[0].startswith("the coordinator cannot write members.log: No space left on device; it tries again")


def test_one_that_was_killed_is_started_at_once(clock: list[float]) -> None:
    assert CoordinatorOutage().over
