"""What a running job shows: a table that is redrawn in place, or a line now and then.

Everything goes to stderr: stdout belongs to the script's output and to `--json`. Nothing here starts a
thread, because the launcher forks; a frame is drawn only inside `update`.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from math import isnan, nan
from typing import Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shoal.watch import figures
from shoal.watch.rate import RateMeter
from shoal.watch.table import plain_table

LINE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """What the launcher knows of one worker at one moment."""

    rank: int
    step: int
    epoch: int
    loss: float
    """The last logged loss; nan = none."""
    samples: int
    """Since the run began."""
    bytes_sent: int
    """Since the run began."""
    state: str
    pid: int
    since: float = 0.0
    """Seconds since it wrote that state down."""


class ProgressDisplay(Protocol):
    """Called by the launcher's one thread, about every 0.1 to 1 s; `stop` may be called twice."""

    def update(self, rows: list[WorkerRow], elapsed: float) -> None: ...
    def print(self, line: str) -> None: ...
    def stop(self) -> None: ...


def open_display(quiet: bool = False) -> ProgressDisplay:
    """The live table on a terminal, else plain lines."""
    console = Console(stderr=True)
    return PlainDisplay() if quiet or not console.is_terminal else TableDisplay(console)


class PlainDisplay:
    """One line at most every `LINE_SECONDS`: for logs, pipes and `--quiet`."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file or sys.stderr
        self._overall = _OverallProgress()
        self._printed = 0.0

    def update(self, rows: list[WorkerRow], elapsed: float) -> None:
        # Made at every call, because rates need all moments and not only those that are printed.
        line = self._overall.line(rows, elapsed)
        if elapsed - self._printed >= LINE_SECONDS:
            self._printed = elapsed
            self.print(line)

    def print(self, line: str) -> None:
        self._file.write(f"{line}\n")
        self._file.flush()

    def stop(self) -> None:
        pass


class TableDisplay:
    """The table on a terminal; its last frame stays when it stops."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self._overall = _OverallProgress()
        # The script's own output is left alone: replacing sys.stdout here would leak into forked workers.
        self._live = Live(console=self.console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._live.start()

    def update(self, rows: list[WorkerRow], elapsed: float) -> None:
        line = Text(f"{figures.seconds(elapsed)}  {self._overall.line(rows, elapsed)}")
        self._live.update(Group(line, _table(rows)), refresh=True)

    def print(self, line: str) -> None:
        """Above the table."""
        # As Text: output of a script is no markup.
        self.console.print(Text(line), soft_wrap=True)

    def stop(self) -> None:
        self._live.stop()


class _OverallProgress:
    """The run as one line: `step 120  loss 0.4321  12034 samples/s  34.1 MB/s`; steps/s without samples."""

    def __init__(self) -> None:
        self._samples = RateMeter()
        self._steps = RateMeter()
        self._bytes = RateMeter()

    def line(self, rows: list[WorkerRow], elapsed: float) -> str:
        samples = self._samples.add(elapsed, sum(row.samples for row in rows))
        steps = self._steps.add(elapsed, _front(rows))
        # Scripts without a joined loader count no samples; steps are shown instead.
        counted = any(row.samples for row in rows) or not _front(rows)
        sent = self._bytes.add(elapsed, sum(row.bytes_sent for row in rows))
        loss = _mean(row.loss for row in rows)
        parts = [f"step {_front(rows)}"]
        parts += [] if isnan(loss) else [f"loss {figures.value(loss)}"]
        parts += [f"{samples:.0f} samples/s" if counted else f"{steps:.1f} steps/s", f"{figures.size(sent)}/s"]
        return "  ".join(parts)


def _table(rows: list[WorkerRow]) -> Table:
    table = plain_table("rank", "pid", "epoch", "step", "behind", "loss", "samples", "sent")
    table.add_column("state")
    for row in rows:
        table.add_row(
            str(row.rank),
            str(row.pid),
            str(row.epoch),
            str(row.step),
            str(_front(rows) - row.step),
            "-" if isnan(row.loss) else figures.value(row.loss),
            figures.count(row.samples),
            figures.size(row.bytes_sent),
            Text(figures.clean(row.state)),
        )
    return table


def _front(rows: list[WorkerRow]) -> int:
    return max((row.step for row in rows), default=0)


def _mean(numbers: Iterable[float]) -> float:
    known = [number for number in numbers if not isnan(number)]
    return sum(known) / len(known) if known else nan
