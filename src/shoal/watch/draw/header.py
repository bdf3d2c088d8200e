"""The top of the page: what was run, with what, and what it came to."""

import time

from rich.table import Table
from rich.text import Text

from shoal.core.record import RunSummary
from shoal.watch import figures
from shoal.watch.record import RunRecord
from shoal.watch.summary import NOT_ENDED


def header(record: RunRecord, summary: RunSummary) -> Table:
    """Name and value, one to a line."""
    info = record.info
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in {
        "run": info.run,
        "plan": info.plan,
        "workers": str(info.workers),
        "seed": str(info.seed),
        "script": info.script,
        **({"lab": info.lab} if info.lab else {}),
        **({"continued": continued(record)} if len(record.attempts) > 1 else {}),
        "started": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(info.started)),
        "versions": ", ".join(f"{name} {version}" for name, version in info.versions.items()),
        "machine": ", ".join(f"{name} {fact}" for name, fact in info.machine.items()),
        "came to": came_to(summary),
        "ended": "not yet, or the launcher was killed" if summary.exit == NOT_ENDED else f"exit {summary.exit}",
    }.items():
        table.add_row(Text(name, style="bold"), Text(figures.clean(text)))
    return table


def continued(record: RunRecord) -> str:
    """When a run went on, where, and with how many workers."""
    return "; ".join(
        f"{time.strftime('%X', time.localtime(again.started))} from step {again.step} with {again.workers} workers"
        for again in record.attempts[1:]
    )


def came_to(summary: RunSummary) -> str:
    """The result in one line."""
    if not summary.steps:
        return "no step was taken"
    samples = f", {figures.count(summary.samples)} samples" if summary.samples else ""
    steps = summary.steps / summary.seconds if summary.seconds else 0.0
    speed = f"{figures.count(summary.samples_per_second)} samples/s" if summary.samples else f"{steps:.1f} steps/s"
    return (
        f"{figures.count(summary.steps)} steps{samples} in {figures.seconds(summary.seconds)}: {speed}; "
        f"sent {figures.size(summary.bytes_sent)} for {figures.size(summary.bytes_raw)} of float32"
    )
