"""Where the mean step goes: one bar per phase, with its share and its milliseconds."""

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from shoal.core.record import StepPhases
from shoal.watch.figures import milliseconds
from shoal.watch.worker import PHASES

WIDTH = 40


class ShareBar:
    """A filled share of `WIDTH` characters."""

    def __init__(self, share: float) -> None:
        self.share = share

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield ("#" if options.ascii_only else "█") * round(self.share * min(WIDTH, options.max_width))


def phase_bars(phases: StepPhases) -> Table:
    """A table of bars; the shares add up to one step."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(width=WIDTH)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    numbers = {phase: getattr(phases, phase) for phase in PHASES}
    whole = sum(numbers.values())
    for phase, number in numbers.items():
        share = number / whole if whole else 0.0
        table.add_row(
            phase.replace("_", " + " if phase == "forward_backward" else " "),
            ShareBar(share),
            f"{share:.0%}",
            f"{milliseconds(number)} ms",
        )
    return table
