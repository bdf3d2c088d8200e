"""The three plots: accuracy against operations, accuracy against parameters, time against operations.

Drawn on a canvas of its own, never through pyplot: nothing of the process is changed and no display is needed.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.bench.models import ModelFigures
from shoal.core.errors import UsageError

Value = Callable[[ModelFigures], float | None]
Axis = tuple[str, Value]

ACCURACY: Axis = ("top-1 accuracy, %", lambda row: None if row.accuracy is None else 100 * row.accuracy)
FLOPS: Axis = ("MFLOPs of one sample", lambda row: row.flops / 1e6)
PARAMETERS: Axis = ("million parameters", lambda row: row.parameters / 1e6)
TIME: Axis = ("inference time at batch 1, ms", lambda row: 1e3 * row.seconds_1)

PLOTS: dict[str, tuple[Axis, Axis]] = {
    "accuracy-flops": (FLOPS, ACCURACY),
    "accuracy-parameters": (PARAMETERS, ACCURACY),
    "time-flops": (FLOPS, TIME),
}
"""Name of the file -> what lies across and what goes up."""


def check_scatters() -> None:
    """Refuse before anything is measured if nothing could be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UsageError("plots need matplotlib, which is not installed; pip install 'shoal[bench]'") from None


def draw_scatters(out: Path, rows: Sequence[ModelFigures]) -> list[Path]:
    """One PNG each in `out`; a model without the value, as a GAN's accuracy, is not in that plot."""
    return [_draw(out / f"{name}.png", rows, *axes) for name, axes in PLOTS.items()]


def points(rows: Sequence[ModelFigures], across: Axis, up: Axis) -> list[tuple[str, float, float]]:
    """(model, x, y) of those that have both."""
    found = [(row.model, across[1](row), up[1](row)) for row in rows]
    return [(name, x, y) for name, x, y in found if x is not None and y is not None]


def _draw(path: Path, rows: Sequence[ModelFigures], across: Axis, up: Axis) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, x, y in points(rows, across, up):
        axes.scatter([x], [y], s=24, color="tab:blue")
        axes.annotate(name, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=8)
    # Operations, parameters and times span decades, accuracies do not.
    axes.set(xlabel=across[0], ylabel=up[0], xscale="log", yscale="log" if up is TIME else "linear")
    axes.margins(x=0.12)  # room for the name of the rightmost
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    return path
