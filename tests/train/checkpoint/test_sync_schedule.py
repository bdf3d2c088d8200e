"""How many steps away the next synchronization is."""

import pytest

from shoal.train.checkpoint.sync_schedule import FEWEST_STEPS, MOST_STEPS, SELDOM_SECONDS, SYNC_SECONDS, SYNC_SHARE
from shoal.train.checkpoint.sync_schedule import steps_between as between


@pytest.mark.parametrize(
    ("step", "sync", "steps"),
    [
        (0.01, 0.0001, SYNC_SECONDS / 0.01),
        (0.01, 0.004, 0.004 / SYNC_SHARE / 0.01),
        (0.6, 0.0001, FEWEST_STEPS),
        (2.0, 0.0001, 1),
        (2.0, 1.0, SELDOM_SECONDS / 2.0),
        (0.0, 0.0001, MOST_STEPS),
        (60.0, 0.1, 1),
    ],
    ids=[
        "twice a second",
        "costs little",
        "short of processors",
        "to stop soon",
        "to stop in time",
        "steps of no time",
        "long steps",
    ],
)
def test_steps_between(step: float, sync: float, steps: float) -> None:
    assert between(step, sync) == int(steps)


def test_a_wait_for_the_next_synchronization_is_bounded() -> None:
    for step in (0.001, 0.1, 0.7, 3.0, 9.0):
        assert between(step, sync=5.0) * step <= SELDOM_SECONDS
        assert 1 <= between(step, sync=0.001) <= MOST_STEPS
