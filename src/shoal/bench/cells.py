"""The columns of a benchmark's table, as text: all of them for a report, those that 80 letters hold for a terminal."""

from shoal.bench.results import ResultRow
from shoal.bench.statistics import MedianSpread
from shoal.watch import figures


def header(until: str | None, priced: bool) -> list[str]:
    columns = [
        "contestant",
        "workers",
        "runs",
        "step ms",
        "samples/s",
        "step ratio",
        "sent/step",
        "CPU s",
        "answer ms",
        "p99 ms",
    ]
    return columns + ([f"s to {until}", "ratio"] if until else []) + (["cost"] if priced else [])


def brief_header(until: str | None, priced: bool) -> list[str]:
    columns = ["contestant", "×", "runs", "step ms", "samples/s", "ratio"]
    return columns + (["s to goal", "ratio"] if until else []) + (["cost"] if priced else [])


def brief(row: ResultRow, until: str | None, priced: bool) -> list[str]:
    """Quartiles of the step alone."""
    name, workers, runs, step, speed = cells(row, until, priced)[:5]
    goal = [middle(row.goal_seconds), middle(row.goal_ratio)] if until else []
    cost = [middle(row.cost, digits=5)] if priced else []
    return [name, workers, runs.replace(" failed", "!"), step, speed, middle(row.step_ratio), *goal, *cost]


def cells(row: ResultRow, until: str | None, priced: bool) -> list[str]:
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
        between(row.answer_seconds, 1000.0) if row.answer_seconds else figures.clean(row.unanswered) or "-",
        between(row.answer_p99, 1000.0),
    ]
    if until:
        missed = f", {good - row.reached} missed" if row.reached < good else ""
        found += [between(row.goal_seconds) + missed, between(row.goal_ratio)]
    return found + ([between(row.cost, digits=5)] if priced else [])


def middle(spread: MedianSpread | None, digits: int = 2) -> str:
    return "-" if spread is None else f"{spread.median:.{digits}f}"


def between(spread: MedianSpread | None, unit: float = 1.0, digits: int = 2) -> str:
    """`1.02 (1.00–1.05)`: the median and its quartiles."""
    if spread is None:
        return "-"
    median, low, high = (f"{value * unit:.{digits}f}" for value in (spread.median, spread.low, spread.high))
    return median if spread.number == 1 else f"{median} ({low}–{high})"
