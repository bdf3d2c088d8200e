"""A benchmark as one value."""

import msgspec

from shoal.bench.results import ResultRow
from shoal.bench.scaling import ScalingCurve, scalings


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
