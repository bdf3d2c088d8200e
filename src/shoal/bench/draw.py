"""The figures of a benchmark: parts of a step, results over training time, efficiency over workers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.bench.measure import PARTS
from shoal.bench.report import BenchReport
from shoal.bench.results import ResultRow
from shoal.core.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HINT = "the figures need matplotlib, which is not installed; pip install 'shoal[bench]'"


def check_available() -> None:
    """Refuse before hours of running, not after."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise UsageError(HINT)


def draw(report: BenchReport, directory: Path) -> list[Path]:
    """Write every figure there is something to show in."""
    # A contestant whose runs have all failed has nothing to draw.
    rows = [row for row in report.rows if row.step_seconds]
    paths = []
    if rows:
        paths.append(_save(_phases(rows), directory / "phases.png"))
    if metric := metric_of(report, rows):
        paths.append(_save(_curves(rows, metric, report.until), directory / "curves.png"))
    if report.scaling:
        paths.append(_save(_scaling(report), directory / "scaling.png"))
    return paths


def metric_of(report: BenchReport, rows: list[ResultRow]) -> str | None:
    """Return the metric of the curves: that of the goal, else the first one reported."""
    names = [name for row in rows for t in row.trials if t.measured for p in t.measured.curve for name in p.metrics]
    wanted = next((name for name in names if report.until and report.until.startswith(name)), None)
    return wanted or next(iter(names), None)


def _figure(width: float, height: float) -> "tuple[Figure, Any]":
    from matplotlib.figure import Figure  # without pyplot: no window system, nothing global

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _save(figure: "Figure", path: Path) -> Path:
    figure.savefig(path, dpi=120)
    return path


def _phases(rows: list[ResultRow]) -> "Figure":
    figure, axes = _figure(8, 1.2 + 0.5 * len(rows))
    names, left = [label(row) for row in rows], [0.0] * len(rows)
    for part in PARTS:
        widths = [row.parts[part] * 1000 for row in rows]
        axes.barh(names, widths, left=left, label=part.replace("_", " "))
        left = [a + b for a, b in zip(left, widths, strict=True)]
    # Bars are drawn upwards, and the first contestant belongs to the top.
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds per step")
    figure.legend(loc="outside upper center", ncols=len(PARTS), fontsize="small")
    return figure


def _curves(rows: list[ResultRow], metric: str, until: str | None) -> "Figure":
    figure, axes = _figure(8, 4.5)
    for number, row in enumerate(rows):
        for place, trial in enumerate(t for t in row.trials if t.measured):
            assert trial.measured is not None
            points = [(p.seconds, p.metrics[metric]) for p in trial.measured.curve if metric in p.metrics]
            name = {"label": label(row)} if place == 0 else {}
            # One colour for all runs of a contestant, and one entry in the legend.
            axes.plot(
                *zip(*points, strict=True), color=f"C{number % 10}", alpha=0.7, marker=".", **name
            ) if points else None
    if until and until.startswith(metric):
        axes.axhline(float(until[len(metric) :].lstrip("<>=")), color="grey", linestyle="--", linewidth=1)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel(metric)
    axes.legend(fontsize="small")
    return figure


def _scaling(report: BenchReport) -> "Figure":
    figure, axes = _figure(6, 4.5)
    for scaling in report.scaling:
        found = [scale.efficiency for scale in scaling.scales]
        errors = [[e.mean - e.low for e in found], [e.high - e.mean for e in found]]
        workers = [scale.workers for scale in scaling.scales]
        axes.errorbar(workers, [e.mean for e in found], yerr=errors, marker="o", capsize=4, label=scaling.contestant)
    axes.axhline(1.0, color="grey", linestyle="--", linewidth=1)
    axes.set_xlabel("workers")
    axes.set_ylabel("efficiency, with 95 % interval")
    axes.set_xticks(sorted({scale.workers for scaling in report.scaling for scale in scaling.scales}))
    # From 0, so that heights compare as efficiencies do.
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")
    return figure


def label(row: ResultRow) -> str:
    return f"{row.contestant} × {row.workers}"
