"""Several runs side by side; the first is what the others are measured against."""

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shoal.core.record import RunSummary
from shoal.watch import figures
from shoal.watch.record import RunRecord
from shoal.watch.summary import known_summary
from shoal.watch.table import add_figures, plain_table


class ComparedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run, and how it stands to the first; None where there is nothing to divide by."""

    summary: RunSummary
    seconds_ratio: float | None
    samples_per_second_ratio: float | None


def compare_runs(records: list[RunRecord]) -> list[ComparedRun]:
    """The runs in the order given."""
    summaries = [known_summary(record) for record in records]
    first = summaries[0]
    return [
        ComparedRun(
            summary=each,
            seconds_ratio=_ratio(each.seconds, first.seconds),
            samples_per_second_ratio=_ratio(each.samples_per_second, first.samples_per_second),
        )
        for each in summaries
    ]


def draw_comparison(compared: list[ComparedRun]) -> Group:
    """Times and bytes in one table; metrics, if any, in a second whose columns are the first one's rows."""
    parts: list[RenderableType] = [_times_table(compared)]
    if any(each.summary.metrics for each in compared):
        parts += [Text(), _metrics_table([each.summary for each in compared])]
    return Group(*parts)


def _times_table(compared: list[ComparedRun]) -> Table:
    table = plain_table("")
    table.add_column("run and plan", overflow="fold")
    add_figures(table, "workers", "seconds", "ratio", "samples/s", "ratio", "sent")
    for number, each in enumerate(compared, 1):
        summary = each.summary
        table.add_row(
            str(number),
            Text(figures.clean(summary.run) + "\n" + figures.clean(summary.plan)),
            str(summary.workers),
            f"{summary.seconds:.2f}",
            _times(each.seconds_ratio),
            figures.count(summary.samples_per_second),
            _times(each.samples_per_second_ratio),
            figures.size(summary.bytes_sent),
        )
    return table


def _metrics_table(summaries: list[RunSummary]) -> Table:
    table = plain_table()
    table.add_column("metric", overflow="fold")
    add_figures(table, *(str(number) for number in range(1, len(summaries) + 1)))
    # Each once, in the order in which the runs reported them.
    for name in dict.fromkeys(name for summary in summaries for name in summary.metrics):
        found = [summary.metrics.get(name) for summary in summaries]
        table.add_row(Text(figures.clean(name)), *["-" if it is None else figures.value(it) for it in found])
    return table


def _ratio(number: float, first: float) -> float | None:
    return number / first if first else None


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"
