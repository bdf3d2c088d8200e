"""When a checkpoint is due."""

import math

import pytest

from shoal.core.errors import UsageError
from shoal.train.checkpoint.interval import MTBF, Interval, guess


def test_words() -> None:
    assert Interval.parse("30s") == Interval(seconds=30)
    assert Interval.parse("1.5 min") == Interval(seconds=90)
    assert Interval.parse("500steps") == Interval(steps=500)
    assert Interval.parse("1step") == Interval(steps=1)
    assert Interval.parse("off").off
    assert Interval.parse("auto") == Interval()


@pytest.mark.parametrize("text", ["", "often", "0s", "-3s", "1.5steps", "30", "30 parsecs", "nan s", "1e3s"])
def test_what_is_no_interval(text: str) -> None:
    with pytest.raises(UsageError, match="is not an interval; give auto, off"):
        Interval.parse(text)


def test_auto_is_youngs_interval_and_costs_little() -> None:
    for cost in (0.01, 0.1, 1.0, 2.8):
        wait = Interval().wait(cost)
        assert math.isclose(wait, math.sqrt(2 * cost * MTBF))
        assert cost / wait <= 0.02
    assert Interval(seconds=5).wait(9) == 5
    assert Interval(off=True).wait(1) == math.inf
    assert guess(10**9) > guess(0) > 0
