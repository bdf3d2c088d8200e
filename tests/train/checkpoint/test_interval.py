"""When a checkpoint is due."""

import math

import pytest

from shoal.core.errors import UsageError
from shoal.train.checkpoint.interval import MTBF, CheckpointInterval, guess


def test_words() -> None:
    assert CheckpointInterval.parse("30s") == CheckpointInterval(seconds=30)
    assert CheckpointInterval.parse("1.5 min") == CheckpointInterval(seconds=90)
    assert CheckpointInterval.parse("500steps") == CheckpointInterval(steps=500)
    assert CheckpointInterval.parse("1step") == CheckpointInterval(steps=1)
    assert CheckpointInterval.parse("off").off
    assert CheckpointInterval.parse("auto") == CheckpointInterval()


@pytest.mark.parametrize("text", ["", "often", "0s", "-3s", "1.5steps", "30", "30 parsecs", "nan s", "1e3s"])
def test_what_is_no_interval(text: str) -> None:
    with pytest.raises(UsageError, match="is not an interval; give auto, off"):
        CheckpointInterval.parse(text)


def test_auto_is_youngs_interval_and_costs_little() -> None:
    for cost in (0.01, 0.1, 1.0, 2.8):
        wait = CheckpointInterval().wait(cost)
        assert math.isclose(wait, math.sqrt(2 * cost * MTBF))
        assert cost / wait <= 0.02
    assert CheckpointInterval(seconds=5).wait(9) == 5
    assert CheckpointInterval(off=True).wait(1) == math.inf
    assert guess(10**9) > guess(0) > 0
