"""Goals: how they are written, and when they are met."""

import math

import pytest

from shoal.core.errors import UsageError
from shoal.core.goal import TrainingGoal, goal_from_environment


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("accuracy>=0.97", TrainingGoal("accuracy", ">=", 0.97)),
        (" loss < 1e-3 ", TrainingGoal("loss", "<", 0.001)),
        ("top_5>.5", TrainingGoal("top_5", ">", 0.5)),
        ("score<=-2", TrainingGoal("score", "<=", -2.0)),
    ],
)
def test_a_goal_is_read_and_written(text: str, goal: TrainingGoal) -> None:
    assert TrainingGoal.parse(text) == goal == TrainingGoal.parse(str(goal))


@pytest.mark.parametrize("text", ["", "accuracy", "accuracy=0.9", "accuracy>=", "0.9<accuracy", "a>=1;b>=2", "a>=nan"])
def test_what_is_no_goal_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"accuracy>=0\.97"):
        TrainingGoal.parse(text)


def test_when_it_is_met() -> None:
    goal = TrainingGoal.parse("accuracy>=0.5")
    assert goal.met({"accuracy": 0.5})
    assert not goal.met({"accuracy": 0.499})
    assert not goal.met({"loss": 1.0})
    assert not goal.met({"accuracy": math.nan})


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHOAL_UNTIL", raising=False)
    assert goal_from_environment() is None
    monkeypatch.setenv("SHOAL_UNTIL", "loss<1")
    assert goal_from_environment() == TrainingGoal("loss", "<", 1.0)
    monkeypatch.setenv("SHOAL_UNTIL", "soon")
    with pytest.raises(UsageError, match="SHOAL_UNTIL 'soon'"):
        goal_from_environment()
