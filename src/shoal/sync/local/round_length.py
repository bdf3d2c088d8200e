"""How many steps a round has under `local(auto)`: as few as keep the exchange under a tenth of the time.

    wanted     the steps at which the exchange takes SHARE of the time, from the seconds of a step and of a round
    drift      if the replicas' changes differ by more than they have in common, half as many steps as now; but not so
               few that the exchange takes more than half of the time

A round is at most four times as long as the one before, and changes of less than a quarter are not made. Pure
arithmetic on what all workers were told alike, so all come to the same number. Wang & Joshi, "Adaptive communication
strategies to achieve the best error-runtime trade-off in local-update SGD", MLSys 2019, shorten rounds as the loss
falls; this rule looks at the drift instead. Do not use it where the same seed must give the same rounds: they follow
the machine's timings.
"""

import math
from dataclasses import dataclass

SHARE, MOST_SHARE = 0.1, 0.5
"""Of the time: what exchanges may take, and what they may take while replicas drift."""
DRIFT = 1.0
"""Mean square distance of the workers' changes from their mean, against the square of that mean."""
FIRST, MOST = 8, 2000
"""Steps of the first rounds, and of any."""


@dataclass(frozen=True)
class RoundFigures:
    """Of one round, the same on all workers."""

    step_seconds: float
    """Of a step with its data, without the exchange."""
    exchange_seconds: float
    """Of the round's exchange, as the worker had it that waited least: the others waited for slower ones."""
    drift: float | None = None
    """None if it is not known yet."""


class RoundLengthChooser:
    """`steps`: of the round that follows."""

    def __init__(self, steps: int = FIRST) -> None:
        self.steps = steps
        self.typical = (0.0, 0.0)
        """Seconds of a step and of an exchange over the last rounds; 0: nothing is known yet."""
        self.reason = ""
        """Of the last change, in words."""

    def update(self, figures: RoundFigures) -> bool:
        """Take in a round; whether the length changes."""
        seconds = zip(self.typical, (figures.step_seconds, figures.exchange_seconds), strict=True)
        self.typical = step, exchange = tuple(_follow(before, new) for before, new in seconds)  # type: ignore[assignment]
        figures = RoundFigures(step, exchange, figures.drift)
        wanted, least = (self._steps_for(figures, share) for share in (SHARE, MOST_SHARE))
        drifts = figures.drift is not None and figures.drift > DRIFT
        chosen = max(least, min(wanted, self.steps // 2)) if drifts else wanted
        chosen = max(1, min(chosen, 4 * self.steps, MOST))
        if chosen != 1 and abs(chosen - self.steps) < self.steps / 4:
            return False
        changed, self.steps = chosen != self.steps, chosen
        self.reason = _explain(figures, drifts)
        return changed

    def _steps_for(self, figures: RoundFigures, share: float) -> int:
        """The fewest steps of which the exchange takes no more than `share` of the time."""
        step = max(figures.step_seconds, 1e-6)
        # 1e-9 less, so that rounding does not make one step more of a whole number
        return max(1, math.ceil(figures.exchange_seconds * (1 - share) / share / step - 1e-9))


def _follow(typical: float, new: float) -> float:
    """A quarter of the way to what a round has shown; one that is far off counts as twice or half of what is usual."""
    if typical <= 0.0:
        return new
    return typical + (min(max(new, typical / 2), 2 * typical) - typical) / 4


def _explain(figures: RoundFigures, drifts: bool) -> str:
    took = f"a step takes {1e3 * figures.step_seconds:.3g} ms, an exchange {1e3 * figures.exchange_seconds:.3g} ms"
    return f"replicas drift ({figures.drift:.2g}); {took}" if drifts else took
