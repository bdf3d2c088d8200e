"""One run in figures, from its record: the warm-up is left out of speed, never out of time to a goal.

Warm-up: the first epoch; of a single epoch its first 10 steps, and never more than half of them.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from shoal.core.events import AnyEvent, InferenceTimed, ResultsReported, StepFinished, WorkerStarted
from shoal.core.goal import TrainingGoal
from shoal.watch.record import RunRecord

WARM_STEPS = 10
PARTS = ("load", "forward", "backward", "exchange_wait", "encode", "update", "other")
"""The parts of a step, in the order they are drawn."""


class ReportPoint(msgspec.Struct, frozen=True):
    """A report of worker 0: when, in seconds of training, and what."""

    seconds: float
    metrics: dict[str, float]


class RunMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """Speed and results, as measured from a record."""

    step_seconds: float
    """Mean over workers and steps after the warm-up."""
    samples_per_second: float
    """Samples a second of all workers together, after the warm-up."""
    parts: dict[str, float]
    """Mean seconds per step after the warm-up; they add up to `step_seconds`."""
    seconds: float
    """All of the training, as the slowest worker saw it."""
    steps: int
    bytes_sent: int
    """Of all workers."""
    cores: int
    """Threads of all workers together."""
    curve: list[ReportPoint]
    answered: InferenceTimed | None = None
    """How long the trained model took for one sample, on worker 0."""


def measure(record: RunRecord) -> RunMeasurement:
    """Read the record once."""
    events = [list(record.events(rank)) for rank in record.ranks]
    steps = [[event for event in own if isinstance(event, StepFinished)] for own in events]
    kept = [after_warm_up(own) for own in steps]
    flat = [step for own in kept for step in own]
    # The others wait for the slowest, whose time is therefore that of all.
    slowest = max((sum(step.seconds for step in own) for own in kept), default=0.0)
    return RunMeasurement(
        step_seconds=_mean(flat, lambda step: step.seconds),
        samples_per_second=sum(step.samples for step in flat) / slowest if slowest else 0.0,
        parts={part: _mean(flat, partial(part_of, part=part)) for part in PARTS},
        seconds=max((sum(step.seconds for step in own) for own in steps), default=0.0),
        steps=max(map(count, steps), default=0),
        bytes_sent=sum(step.sent for own in steps for step in own),
        cores=sum(event.threads for own in events for event in own if isinstance(event, WorkerStarted)),
        # Worker 0 reports the results of a run.
        curve=curve(events[0]) if events else [],
        answered=next((event for own in events for event in own if isinstance(event, InferenceTimed)), None),
    )


def after_warm_up(steps: Sequence[StepFinished]) -> list[StepFinished]:
    """What counts for speed."""
    first = [step for step in steps if step.epoch == (steps[0].epoch if steps else 0)]
    if len(first) < len(steps):
        return list(steps[len(first) :])
    warm, kept = min(WARM_STEPS, count(steps) // 2), list(steps)
    while kept and warm > 0:
        warm -= kept.pop(0).steps
    return kept


def count(steps: Iterable[StepFinished]) -> int:
    """Old steps are merged, several into one event."""
    return sum(step.steps for step in steps)


def curve(events: Iterable[AnyEvent]) -> list[ReportPoint]:
    """Worker 0's reports over the training seconds before them."""
    points, seconds = [], 0.0
    for event in events:
        if isinstance(event, StepFinished):
            seconds += event.seconds
        elif isinstance(event, ResultsReported):
            points.append(ReportPoint(seconds, event.metrics))
    return points


def seconds_to(goal: TrainingGoal, points: Iterable[ReportPoint]) -> float | None:
    """Training seconds to the first report that is good enough; None if there is none."""
    return next((point.seconds for point in points if goal.met(point.metrics)), None)


def part_of(step: StepFinished, part: str) -> float:
    """Return the seconds of a part of a step; old records count the forward pass as backward."""
    if part == "backward":
        return step.forward_backward - step.forward
    return float(getattr(step, part))


def _mean(steps: Sequence[StepFinished], figure: Callable[[StepFinished], float]) -> float:
    """Per step."""
    return sum(map(figure, steps)) / count(steps) if steps else 0.0
