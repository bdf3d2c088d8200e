"""The results of a benchmark: one row per contestant and number of workers."""

from collections.abc import Callable

import msgspec

from shoal.bench.contestant import BenchContestant
from shoal.bench.measure import PARTS
from shoal.bench.statistics import MedianSpread, ratios, spread
from shoal.bench.trial import BenchTrial
from shoal.core.events import InferenceTimed


class ResultRow(msgspec.Struct, frozen=True, kw_only=True):
    """One contestant with one number of workers; None where there is nothing to tell."""

    contestant: str
    peer: bool
    workers: int
    step_seconds: MedianSpread | None
    samples_per_second: MedianSpread | None
    step_ratio: MedianSpread | None
    """Step time by the first contestant's with as many workers, repeat by repeat: below 1 is faster."""
    seconds: MedianSpread | None
    cpu_seconds: MedianSpread | None
    goal_seconds: MedianSpread | None
    """Of the runs that reached the goal."""
    goal_ratio: MedianSpread | None
    reached: int
    cost: MedianSpread | None
    parts: dict[str, float]
    """Median seconds per step."""
    bytes_per_step: float
    """Payloads of all workers."""
    trials: list[BenchTrial]
    answer_seconds: MedianSpread | None = None
    """Median time of the trained model for one sample, run by run."""
    answer_p99: MedianSpread | None = None
    unanswered: str = ""
    """Why there is no such time."""


def row(contestant: BenchContestant, workers: int, trials: list[BenchTrial], first: list[BenchTrial]) -> ResultRow:
    """Sum up `trials`, against those of the `first` contestant."""
    good = [trial for trial in trials if trial.measured is not None]
    return ResultRow(
        contestant=contestant.name,
        peer=contestant.peer,
        workers=workers,
        step_seconds=spread(values_of(trials, step_seconds)),
        samples_per_second=spread(values_of(trials, samples_per_second)),
        step_ratio=spread(ratios(by_repeat(trials, step_seconds), by_repeat(first, step_seconds))),
        seconds=spread([trial.measured.seconds for trial in good if trial.measured]),
        cpu_seconds=spread([trial.cpu_seconds for trial in good]),
        goal_seconds=spread(values_of(trials, goal_seconds)),
        goal_ratio=spread(ratios(by_repeat(trials, goal_seconds), by_repeat(first, goal_seconds))),
        reached=len(by_repeat(trials, goal_seconds)),
        cost=spread(values_of(trials, lambda trial: trial.cost)),
        parts=_parts(good),
        bytes_per_step=_median([_per_step(trial) for trial in good]),
        trials=trials,
        answer_seconds=spread(values_of(trials, answer_seconds)),
        answer_p99=spread(values_of(trials, answer_p99)),
        unanswered=next((answered.why for answered in map(_answered, good) if answered and answered.why), ""),
    )


def step_seconds(trial: BenchTrial) -> float | None:
    return trial.measured.step_seconds if trial.measured else None


def samples_per_second(trial: BenchTrial) -> float | None:
    return trial.measured.samples_per_second if trial.measured else None


def goal_seconds(trial: BenchTrial) -> float | None:
    return trial.goal_seconds


def answer_seconds(trial: BenchTrial) -> float | None:
    answered = _answered(trial)
    return answered.seconds if answered and not answered.why else None


def answer_p99(trial: BenchTrial) -> float | None:
    answered = _answered(trial)
    return answered.p99 if answered and not answered.why else None


def _answered(trial: BenchTrial) -> InferenceTimed | None:
    return trial.measured.answered if trial.measured else None


def by_repeat(trials: list[BenchTrial], figure: Callable[[BenchTrial], float | None]) -> dict[int, float]:
    """Repeat -> figure, where there is one."""
    return {trial.repeat: value for trial in trials if (value := figure(trial)) is not None}


def values_of(trials: list[BenchTrial], figure: Callable[[BenchTrial], float | None]) -> list[float]:
    # Without runs that have no such figure; they are counted apart.
    return list(by_repeat(trials, figure).values())


def _parts(good: list[BenchTrial]) -> dict[str, float]:
    return {part: _median([trial.measured.parts[part] for trial in good if trial.measured]) for part in PARTS}


def _per_step(trial: BenchTrial) -> float:
    return trial.measured.bytes_sent / max(1, trial.measured.steps) if trial.measured else 0.0


def _median(values: list[float]) -> float:
    found = spread(values)
    return found.median if found else 0.0
