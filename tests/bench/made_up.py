"""Trials and records that nobody ran."""

from pathlib import Path

from shoal.bench.contestant import BenchContestant, TrialOrder
from shoal.bench.measure import PARTS, ReportPoint, RunMeasurement
from shoal.bench.session import BenchSetting
from shoal.bench.trial import BenchTrial, complete
from shoal.core.events import InferenceTimed, StepFinished
from shoal.core.goal import TrainingGoal


def measured(step: float, speed: float = 100.0, seconds: float = 10.0) -> RunMeasurement:
    return RunMeasurement(
        step_seconds=step,
        samples_per_second=speed,
        parts=dict.fromkeys(PARTS, step / len(PARTS)),
        seconds=seconds,
        steps=20,
        bytes_sent=4000,
        cores=4,
        curve=[ReportPoint(seconds / 2, {"accuracy": 0.8}), ReportPoint(seconds, {"accuracy": 0.9})],
        answered=InferenceTimed(at=0.0, seconds=step / 10, p99=step / 5, passes=200),
    )


def trial(
    repeat: int, step: float, speed: float = 100.0, goal: TrainingGoal | None = None, price: float | None = None
) -> BenchTrial:
    plain = BenchTrial(repeat=repeat, seed=repeat, run="run", exit=0, cpu_seconds=3.0)
    return complete(plain, measured(step, speed, 100 * step), goal, price)


def failed(repeat: int) -> BenchTrial:
    return BenchTrial(repeat=repeat, seed=0, run="run", exit=1, error="shoal: worker 0 failed")


def setting(out: Path, **words: object) -> BenchSetting:
    both = (BenchContestant("allreduce, every(1)"), BenchContestant("ddp", peer=True))
    return BenchSetting(**{"script": "train.py", "contestants": both, "out": out, "quiet": True} | words)  # type: ignore[arg-type]


def twice_as_slow(
    contestant: BenchContestant, order: TrialOrder, repeat: int, goal: TrainingGoal | None, price: float | None
) -> BenchTrial:
    """The peer takes twice the time, the second repeat ten times that; workers help by half."""
    factor = (2.0 if contestant.peer else 1.0) * (10.0 if repeat == 1 else 1.0)
    return trial(repeat, 0.01 * factor, 100 * (1 + order.workers) / factor, goal, price)


def step(number: int, epoch: int = 0, seconds: float = 1.0) -> StepFinished:
    times = {"load": 0.1, "exchange_wait": 0.2, "encode": 0.1, "update": 0.1}
    rest = seconds - sum(times.values())
    return StepFinished(
        at=0.0, step=number, epoch=epoch, samples=4, seconds=seconds, forward_backward=rest, forward=rest / 4, **times
    )
