"""A benchmark on the terminal: one table that grows while the contestants run."""

from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shoal.bench.cells import brief, brief_header
from shoal.bench.results import ResultRow
from shoal.bench.scaling import ScalingCurve, verdict
from shoal.watch.table import add_figures, plain_table


def table(rows: list[ResultRow], until: str | None, priced: bool) -> Table:
    name, *others = brief_header(until, priced)
    drawn = plain_table()
    drawn.add_column(name, overflow="fold", min_width=10)
    add_figures(drawn, *others)
    for row in rows:
        drawn.add_row(*map(Text, brief(row, until, priced)))
    return drawn


def ending(rows: list[ResultRow], scaling: list[ScalingCurve], until: str | None, priced: bool) -> Group:
    """Return the table, and the conclusions for the number of workers."""
    parts: list[RenderableType] = [table(rows, until, priced)]
    parts += [Text(verdict(each)) for each in scaling]
    return Group(*parts)


class BenchScreen:
    """Shows the table on standard error: redrawn on a terminal, elsewhere one line per run."""

    def __init__(self, total: int, until: str | None, priced: bool, quiet: bool) -> None:
        self.total, self.until, self.priced, self.done = total, until, priced, 0
        self.console = Console(stderr=True, highlight=False, quiet=quiet)
        # Transient: the table of the end takes its place.
        self._live = Live(console=self.console, transient=True) if self.console.is_terminal and not quiet else None

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def begins(self, rows: list[ResultRow], name: str, workers: int, repeat: int) -> None:
        self.done += 1
        now = Text(f"run {self.done} of {self.total}: {name}, {workers} workers, repeat {repeat + 1}", "dim")
        if self._live:
            self._live.update(Group(table(rows, self.until, self.priced), now), refresh=True)
        else:
            self.console.print(now, soft_wrap=True)

    def failed(self, error: str) -> None:
        self.console.print(Text(error or "it failed without a word"), soft_wrap=True)
