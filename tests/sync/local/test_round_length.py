"""`local(auto)`: the length of a round follows the seconds of steps and exchanges, and the drift; no clock is read."""

import pytest

from shoal.sync.local.round_length import DRIFT, FIRST, MOST, SHARE, RoundFigures, RoundLengthChooser


def lengths(figures: RoundFigures, rounds: int, steps: int = FIRST) -> list[int]:
    chooser = RoundLengthChooser(steps)
    found = []
    for _ in range(rounds):
        chooser.update(figures)
        found.append(chooser.steps)
    return found


@pytest.mark.parametrize(("step", "exchange"), [(0.01, 0.5), (0.01, 0.001), (1.0, 0.2), (0.002, 0.3)])
def test_an_exchange_takes_a_tenth_of_the_time_and_rounds_are_not_much_longer_than_that_needs(
    step: float, exchange: float
) -> None:
    steps = lengths(RoundFigures(step, exchange), 12)[-1]
    assert exchange / (exchange + steps * step) <= SHARE * 1.25
    assert steps <= 1 or exchange / (exchange + steps * step) >= SHARE / 1.5


def test_a_round_is_at_most_four_times_as_long_as_the_one_before_and_has_a_limit() -> None:
    found = lengths(RoundFigures(1e-4, 10.0), 12)
    assert found[:3] == [4 * FIRST, 16 * FIRST, 64 * FIRST]
    assert found[-1] == MOST


def test_a_change_of_less_than_a_quarter_is_not_made() -> None:
    chooser = RoundLengthChooser(90)
    assert not chooser.update(RoundFigures(0.01, 0.11))  # 99 steps
    chooser = RoundLengthChooser(90)
    assert chooser.update(RoundFigures(0.01, 0.2))
    assert chooser.steps == 180
    assert chooser.reason == "a step takes 10 ms, an exchange 200 ms"


def test_one_slow_exchange_hardly_counts_and_lasting_ones_do() -> None:
    chooser = RoundLengthChooser(90)
    chooser.update(RoundFigures(0.01, 0.1))
    chooser.update(RoundFigures(0.01, 9.0))
    assert chooser.steps <= 1.26 * 90
    for _ in range(20):
        chooser.update(RoundFigures(0.01, 0.4))
    assert chooser.steps > 250


def test_rounds_get_shorter_while_replicas_drift_until_exchanges_take_half_of_the_time() -> None:
    drifting = RoundFigures(0.01, 0.5, drift=2 * DRIFT)
    assert lengths(drifting, 6, 450) == [225, 112, 56, 56, 56, 56]
    assert lengths(RoundFigures(0.01, 0.5, drift=DRIFT / 2), 4, 56)[-1] == 450
    chooser = RoundLengthChooser(450)
    chooser.update(drifting)
    assert chooser.reason.startswith("replicas drift (2);")
