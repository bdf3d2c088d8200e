"""The files that a benchmark leaves: `bench.json`, `bench.md`, a page of Markdown, and the figures."""

from pathlib import Path

import msgspec

from shoal.bench.cells import cells, header
from shoal.bench.draw import draw
from shoal.bench.measure import PARTS
from shoal.bench.report import BenchReport
from shoal.bench.scaling import ScalingCurve, verdict
from shoal.core.durable import write_file
from shoal.core.record import PRIVATE


def write_report(report: BenchReport, directory: Path) -> list[Path]:
    """Write all files; returns them."""
    figures = draw(report, directory)
    text = markdown(report, [figure.name for figure in figures])
    write_file(directory / "bench.json", msgspec.json.format(msgspec.json.encode(report)) + b"\n", mode=PRIVATE)
    write_file(directory / "bench.md", text.encode(), mode=PRIVATE)
    return [directory / "bench.json", directory / "bench.md", *figures]


def markdown(report: BenchReport, figures: list[str]) -> str:
    """The page; `figures` lie beside it."""
    replayed = " (computing replayed: only communication is real)" if report.replayed else ""
    parts = [f"# Benchmark of {report.script}{replayed}", _conditions(report)]
    parts += [_table(header(report.until, report.price is not None), _rows(report))]
    parts += ["## Where a step goes", _table(["contestant", "workers", *(f"{p} ms" for p in PARTS)], _parts(report))]
    if report.scaling:
        parts += ["## Scaling", *map(_scaling, report.scaling)]
    parts += [f"![{name}]({name})" for name in figures]
    return "\n\n".join(parts) + "\n"


def _conditions(report: BenchReport) -> str:
    seeds = (
        f"seeds {report.seeds[0]} to {report.seeds[-1]}" if len(set(report.seeds)) > 1 else f"seed {report.seeds[0]}"
    )
    lines = [
        f"`{' '.join([report.script, *report.arguments])}`; {report.repeats} repeats, {seeds}, contestants in turns.",
        "Medians with quartiles. Ratios are to the first contestant with as many workers, repeat by repeat; below 1 "
        "is faster. The first epoch (of a single one, 10 steps) is warm-up and left out of speed.",
        "Answer: the trained model's time for one sample, on worker 0 when its script had ended, in the run's threads; "
        "the other workers may still have been ending.",
        "DDP's exchange happens inside its backward pass and is counted there. Processor time includes start-up.",
        ", ".join(f"{name} {value}" for name, value in (report.versions | report.machine).items()) + ".",
    ]
    if report.lab:
        lines.insert(1, f"Workers on the emulated hosts of the lab `{report.lab}`.")
    return "\n\n".join(lines)


def _rows(report: BenchReport) -> list[list[str]]:
    return [cells(row, report.until, report.price is not None) for row in report.rows]


def _parts(report: BenchReport) -> list[list[str]]:
    return [[row.contestant, str(row.workers), *(f"{row.parts[p] * 1000:.2f}" for p in PARTS)] for row in report.rows]


def _scaling(scaling: ScalingCurve) -> str:
    rows = [
        [str(s.workers), f"{s.efficiency.mean:.2f}", f"{s.efficiency.low:.2f} to {s.efficiency.high:.2f}"]
        for s in scaling.scales
    ]
    return verdict(scaling) + "\n\n" + _table(["workers", "efficiency", "95 % interval"], rows)


def _table(names: list[str], rows: list[list[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
