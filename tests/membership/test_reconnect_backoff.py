"""A silent coordinator is called again, but never before the last call could have been answered."""

from itertools import pairwise

import pytest

from shoal.membership.coordinator_client import FIRST, LONGEST, ROUND_TRIPS, SHORTEST, ReconnectBackoff


def called(redial: ReconnectBackoff, until: float, since: float = 0.0) -> list[float]:
    """When it was called again, looked at every tenth of a second."""
    return [at / 10 for at in range(int(10 * since), int(10 * until)) if redial.due(at / 10)]


def test_nobody_answers_and_calls_get_rarer() -> None:
    times = called(ReconnectBackoff(0.0), 100.0)
    gaps = [after - before for before, after in pairwise([0.0, *times])]
    assert gaps[0] > FIRST
    assert all(after >= 1.9 * before for before, after in pairwise(gaps[:4]))
    assert max(gaps) <= LONGEST + 0.2


@pytest.mark.parametrize("round_trip", [0.001, 0.3, 0.6, 5.0])
def test_a_call_has_as_long_as_keys_take_on_its_link(round_trip: float) -> None:
    redial = ReconnectBackoff(0.0)
    redial.round_trip(round_trip)
    redial.heard(9.0)
    first, second = called(redial, 99.0, since=9.0)[:2]
    wanted = min(max(SHORTEST, ROUND_TRIPS * round_trip), LONGEST)
    assert wanted < first - 9.0 < wanted + 0.3
    assert second - first > min(1.9 * wanted, LONGEST)


def test_an_answer_makes_calls_as_quick_as_before() -> None:
    redial = ReconnectBackoff(0.0)
    redial.round_trip(0.01)
    times = called(redial, 20.0)
    redial.heard(20.0)
    assert called(redial, 60.0, since=20.0)[0] - 20.0 < SHORTEST + 0.3 < times[-1] - times[-2]
