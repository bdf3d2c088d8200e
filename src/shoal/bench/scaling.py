"""How speed grows with workers, and from where on more of them do not pay.

Batches are per worker, so p workers with perfect scaling have p times the samples per second. Efficiency is what of
that is there, against the smallest number of workers measured, repeat by repeat.
"""

import msgspec

from shoal.bench.results import ResultRow, by_repeat, samples_per_second
from shoal.bench.statistics import ConfidenceInterval, interval, ratios


class ScalePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One number of workers against the smallest, and against the one before."""

    workers: int
    efficiency: ConfidenceInterval
    gain: ConfidenceInterval | None
    """Samples per second by those with the number of workers before; None for the smallest."""


class ScalingCurve(msgspec.Struct, frozen=True, kw_only=True):
    """One contestant over its numbers of workers."""

    contestant: str
    scales: list[ScalePoint]
    stops_at: int | None
    """The first number of workers that is, in the mean, no faster than the one before; None if all are."""
    doubtful_at: int | None
    """The first number of workers that is not faster with 95 % confidence; None if all are."""


def scalings(rows: list[ResultRow]) -> list[ScalingCurve]:
    """For every contestant that was measured with several numbers of workers."""
    found = [
        scaling([row for row in rows if row.contestant == name]) for name in dict.fromkeys(r.contestant for r in rows)
    ]
    return [each for each in found if each is not None and len(each.scales) > 1]


def scaling(rows: list[ResultRow]) -> ScalingCurve | None:
    """The rows of one contestant."""
    ordered = sorted((row for row in rows if row.samples_per_second), key=lambda row: row.workers)
    scales = [_scale(row, ordered[0], ordered[i - 1] if i else None) for i, row in enumerate(ordered)]
    known = [scale for scale in scales if scale is not None]
    if not known:
        return None
    stops = next((scale.workers for scale in known if scale.gain and scale.gain.mean <= 1.0), None)
    doubtful = next((scale.workers for scale in known if scale.gain and scale.gain.low <= 1.0), None)
    return ScalingCurve(contestant=ordered[0].contestant, scales=known, stops_at=stops, doubtful_at=doubtful)


def _scale(row: ResultRow, smallest: ResultRow, before: ResultRow | None) -> ScalePoint | None:
    # Batches are per worker, so the samples grow with the workers.
    ideal = row.workers / smallest.workers
    efficiency = interval([ratio / ideal for ratio in _ratios(row, smallest)])
    gain = interval(_ratios(row, before)) if before else None
    return ScalePoint(workers=row.workers, efficiency=efficiency, gain=gain) if efficiency else None


def _ratios(row: ResultRow, other: ResultRow) -> list[float]:
    return ratios(by_repeat(row.trials, samples_per_second), by_repeat(other.trials, samples_per_second))


def verdict(scaling: ScalingCurve) -> str:
    """One sentence for a reader."""
    name, last = scaling.contestant, scaling.scales[-1].workers
    where = scaling.stops_at or scaling.doubtful_at
    gain = next((scale.gain for scale in scaling.scales if scale.workers == where), None)
    if gain is None:
        return f"{name}: every step up to {last} workers pays."
    by = f"({gain.mean:.2f} times as fast as before, {gain.low:.2f} to {gain.high:.2f})"
    if scaling.stops_at is not None:
        return f"{name}: it stops paying at {where} workers {by}."
    return f"{name}: whether {where} workers pay is not certain {by}; more repeats would tell."
