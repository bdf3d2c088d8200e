"""Medians with quartiles, paired ratios, and confidence intervals of a mean."""

import statistics
from collections.abc import Mapping, Sequence

import msgspec

_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Student's t at 97.5 %, for 1, 2, … degrees of freedom; beyond them 2.1 is a safe bound."""


class MedianSpread(msgspec.Struct, frozen=True):
    """A median and its quartiles."""

    median: float
    low: float
    high: float
    number: int


class ConfidenceInterval(msgspec.Struct, frozen=True):
    """A mean and its 95 % confidence interval; of one value nothing is known but itself."""

    mean: float
    low: float
    high: float
    number: int


def spread(values: Sequence[float]) -> MedianSpread | None:
    if not values:
        return None
    if len(values) == 1:
        return MedianSpread(values[0], values[0], values[0], 1)
    # Inclusive: few repeats are the whole of what was measured, not a sample of quartiles beyond them.
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return MedianSpread(median, low, high, len(values))


def interval(values: Sequence[float]) -> ConfidenceInterval | None:
    if not values:
        return None
    mean, freedom = statistics.fmean(values), len(values) - 1
    if freedom == 0:
        return ConfidenceInterval(mean, mean, mean, 1)
    t = _T95[freedom - 1] if freedom <= len(_T95) else 2.1
    half = t * statistics.stdev(values) / len(values) ** 0.5
    return ConfidenceInterval(mean, mean - half, mean + half, len(values))


def ratios(values: Mapping[int, float], first: Mapping[int, float]) -> list[float]:
    """Each value by that of the first in the same repeat: what slowed both cancels out."""
    return [value / first[repeat] for repeat, value in values.items() if first.get(repeat)]
