"""The columns of a benchmark's table, as text: the same on the terminal and in Markdown."""

from shoal.bench.results import Row
from shoal.bench.statistics import Spread
from shoal.watch import figures


def header(until: str | None, priced: bool) -> list[str]:
    columns = ["contestant", "workers", "runs", "step ms", "samples/s", "step ratio", "sent/step", "CPU s"]
    return columns + ([f"s to {until}", "ratio"] if until else []) + (["cost"] if priced else [])


def cells(row: Row, until: str | None, priced: bool) -> list[str]:
    good = sum(trial.exit == 0 for trial in row.trials)
    runs = str(good) if good == len(row.trials) else f"{good}, {len(row.trials) - good} failed"
    found = [
        figures.clean(row.contestant),
        str(row.workers),
        runs,
        between(row.step_seconds, 1000.0),
        figures.count(row.samples_per_second.median) if row.samples_per_second else "-",
        between(row.step_ratio),
        figures.size(row.bytes_per_step),
        between(row.cpu_seconds, digits=1),
    ]
    if until:
        missed = f", {good - row.reached} missed" if row.reached < good else ""
        found += [between(row.goal_seconds) + missed, between(row.goal_ratio)]
    return found + ([between(row.cost, digits=5)] if priced else [])


def between(spread: Spread | None, unit: float = 1.0, digits: int = 2) -> str:
    """`1.02 (1.00–1.05)`: the median and its quartiles."""
    if spread is None:
        return "-"
    middle, low, high = (f"{value * unit:.{digits}f}" for value in (spread.median, spread.low, spread.high))
    return middle if spread.number == 1 else f"{middle} ({low}–{high})"
