"""The page `shoal ps` draws: a line for each live run, and under it a table of its workers."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shoal.watch import figures
from shoal.watch.running import LiveRun, RunningMember, shown_folder
from shoal.watch.table import add_figures, plain_table


def draw_running(runs: Sequence[LiveRun]) -> Group:
    """All of them."""
    if not runs:
        return Group(Text("no run of yours is live here; start one with 'shoal run'"))
    parts: list[RenderableType] = []
    for number, run in enumerate(runs):
        parts += [Text()] * bool(number)
        parts += [Text(figures.clean(line), overflow="fold") for line in _head(run)]
        parts.append(_table(run.members))
    return Group(*parts)


def _head(run: LiveRun) -> list[str]:
    again = f", attempt {run.attempt}" if run.attempt > 1 else ""
    first = f"{run.run}: {run.state} for {figures.seconds(run.seconds)}, step {run.step}{again} (pid {run.pid})"
    where = f"{run.plan}; {shown_folder(run.dir)}" + (f"; lab {run.lab}" if run.lab else "")
    beside = run.coordinator
    return [first, where, *([f"coordinator: {beside.state} (pid {beside.pid})"] if beside is not None else [])]


def _table(members: Sequence[RunningMember]) -> Table:
    table = plain_table("worker", "rank")
    table.add_column("host", max_width=16, no_wrap=True, overflow="crop")
    add_figures(table, "pid", "step", "progress")
    table.add_column("state")
    for member in members:
        reason = f" ({member.reason})" if member.reason and member.rank is None else ""
        again = f", started {member.starts} times" if member.starts > 1 else ""
        table.add_row(
            str(member.worker),
            "-" if member.rank is None else str(member.rank),
            Text(figures.clean(member.host)),
            str(member.pid),
            str(member.step),
            "-" if member.last_progress is None else f"{member.last_progress:.1f} s ago",
            Text(figures.clean(f"{member.state}{reason}{again}")),
        )
    return table
