"""A result to be reached: `accuracy>=0.97`, `loss<0.1`."""

import operator
import os
import re

import msgspec

from shoal.core.errors import UsageError

UNTIL_VARIABLE = "SHOAL_UNTIL"
_COMPARISONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_SHAPE = re.compile(r"\s*([A-Za-z_]\w*)\s*(>=|<=|>|<)\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*")


class TrainingGoal(msgspec.Struct, frozen=True):
    """A metric, a comparison and a number."""

    metric: str
    comparison: str
    value: float

    @classmethod
    def parse(cls, text: str, what: str = "--until") -> "TrainingGoal":
        found = _SHAPE.fullmatch(text)
        if found is None:
            raise UsageError(
                f"{what} {text!r} is not a goal; write a metric, >=, <=, > or <, and a number: accuracy>=0.97"
            )
        return cls(found[1], found[2], float(found[3]))

    def met(self, metrics: dict[str, float]) -> bool:
        """Return whether `metrics` reach the goal; a metric that is missing or NaN does not."""
        # Every comparison with NaN is false, so a NaN never reaches a goal.
        return self.metric in metrics and bool(_COMPARISONS[self.comparison](metrics[self.metric], self.value))

    def __str__(self) -> str:
        return f"{self.metric}{self.comparison}{self.value:g}"


def goal_from_environment() -> TrainingGoal | None:
    """Return the goal in $SHOAL_UNTIL, if it is set."""
    text = os.environ.get(UNTIL_VARIABLE, "")
    return TrainingGoal.parse(text, UNTIL_VARIABLE) if text else None
