"""A benchmark as one value, and the files it leaves: `bench.json`, `bench.md` and the figures."""

from pathlib import Path

import msgspec

from shoal.bench.results import ResultRow
from shoal.bench.scaling import ScalingCurve, scalings
from shoal.core.durable import write_file
from shoal.core.record import PRIVATE


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was measured, and under what."""

    script: str
    arguments: list[str]
    command: list[str]
    repeats: int
    seeds: list[int]
    """Of the repeats, in order."""
    until: str | None
    price: float | None
    """Per core and hour."""
    versions: dict[str, str]
    machine: dict[str, str | int]
    out: str
    rows: list[ResultRow]
    scaling: list[ScalingCurve] = []
    lab: str = ""
    replayed: bool = False
    exit: int = 0


def with_scaling(report: BenchReport) -> BenchReport:
    return msgspec.structs.replace(report, scaling=scalings(report.rows))


def write_report(report: BenchReport, directory: Path) -> list[Path]:
    """Write all files; returns them."""
    from shoal.bench.draw import draw
    from shoal.bench.markdown import markdown

    figures = draw(report, directory)
    text = markdown(report, [figure.name for figure in figures])
    write_file(directory / "bench.json", msgspec.json.format(msgspec.json.encode(report)) + b"\n", mode=PRIVATE)
    write_file(directory / "bench.md", text.encode(), mode=PRIVATE)
    return [directory / "bench.json", directory / "bench.md", *figures]
