"""Which version answers, learnt from feedback: Exp3, as Clipper selects among models (Crankshaw et al., NSDI'17, §5.1).

Auer et al.: "The Nonstochastic Multiarmed Bandit Problem" (SIAM J. Comput. 2002). Each version has the sum of its
losses, each divided by the probability with which the version was chosen; the chance of a version falls exponentially
with that sum. Nothing is assumed about how losses come about. Sums add up over processes, so there is no other state.

Do not use it without feedback: all versions are asked equally then, and a canary says more.
"""

from collections.abc import Mapping
from math import exp

RATE = 0.05
"""By how much a loss of 1 lowers a version's weight, as an exponent."""
EXPLORE = 0.05
"""The share of requests that goes to all versions alike, so that one that got better is found out."""
LEAD = 150.0
"""How far a version's sum of losses may count to be behind the best: beyond it, a switch would take as many losses."""


def exp3_chances(losses: Mapping[int, float]) -> dict[int, float]:
    """The probability of each version, given its sum of loss ÷ probability."""
    if not losses:
        return {}
    least = min(losses.values())
    weights = {number: exp(-RATE * min(loss - least, LEAD)) for number, loss in losses.items()}
    total = sum(weights.values())
    # Sorted, so that a request's id leads to the same version in every process.
    return {
        number: (1.0 - EXPLORE) * weight / total + EXPLORE / len(losses) for number, weight in sorted(weights.items())
    }


def choose(chances: Mapping[int, float], point: float) -> int:
    """The version at `point` of [0, 1), where each has a piece as long as its probability."""
    for number, chance in chances.items():
        point -= chance
        if point < 0:
            return number
    return next(reversed(list(chances)))  # the probabilities add up to a little less than 1
