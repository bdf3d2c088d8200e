"""What the steps of a recorded run computed, for forecasts of other plans."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from shoal.core.errors import UsageError
from shoal.core.measurements import StepFinished
from shoal.core.suggest import shown
from shoal.plan.server_time import MeasuredComputing, computing_seconds
from shoal.watch.record import RunRecord, resolve


def forecast_computing(runs: Sequence[str], root: Path, batch: int | None) -> float | None:
    """Return the seconds that a batch takes one worker, by these runs; None if there are none."""
    measured = [measure_computing(RunRecord.open(resolve(root, run)), run) for run in runs]
    return computing_seconds(measured, batch) if measured else None


def measure_computing(record: RunRecord, name: str) -> MeasuredComputing:
    """Return the median step of a run's workers, without what they waited for and encoded.

    The median, because the first steps allocate memory and compile.
    """
    steps = [event for rank in record.ranks for event in record.events(rank) if isinstance(event, StepFinished)]
    if not steps:
        raise UsageError(f"--computing {shown(name)}: no step of it is in the record; give a run that has trained")
    alone = [(each.seconds - each.exchange_wait - each.encode) / each.steps for each in steps]
    return MeasuredComputing(median(each.samples / each.steps for each in steps), median(alone))
