"""The files that a benchmark leaves: `bench.json`, `bench.md` and the figures."""

from pathlib import Path

import msgspec

from shoal.bench.draw import draw
from shoal.bench.markdown import markdown
from shoal.bench.report import BenchReport
from shoal.core.durable import write_file
from shoal.core.record import PRIVATE


def write_report(report: BenchReport, directory: Path) -> list[Path]:
    """Write all files; returns them."""
    figures = draw(report, directory)
    text = markdown(report, [figure.name for figure in figures])
    write_file(directory / "bench.json", msgspec.json.format(msgspec.json.encode(report)) + b"\n", mode=PRIVATE)
    write_file(directory / "bench.md", text.encode(), mode=PRIVATE)
    return [directory / "bench.json", directory / "bench.md", *figures]
