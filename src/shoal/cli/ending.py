"""How `shoal run` ends, in words: the result of a run, the workers it lost, or why it failed."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from shoal.core.record import RunSummary
    from shoal.launch.failures import RunFailure
    from shoal.launch.job import LaunchJob

EXIT_FAILED, EXIT_INTERRUPTED = 1, 130


def last_line(summary: "RunSummary", job: "LaunchJob") -> str:
    """The outcome of a run."""
    if summary.exit == EXIT_INTERRUPTED:
        return f"shoal: interrupted after {summary.steps} steps; the record is in {shown(job.dir)}"
    steps = summary.steps / summary.seconds if summary.seconds else 0.0
    speed = f"{summary.samples_per_second:.0f} samples/s" if summary.samples else f"{steps:.1f} steps/s"
    done = f"{summary.steps} steps{f', {summary.samples} samples' if summary.samples else ''}"
    done = f"{done} in {summary.seconds:.2f} s ({speed})"
    return f"shoal: {done}; shoal show {job.run}{registered(job.dir)}"


def registered(directory: Path) -> str:
    """Return the command that shows the version the run's model became; empty if it was not registered."""
    import json

    try:
        # Written by a worker, so it may be missing or torn.
        told = json.loads((directory / "model.json").read_bytes())
        return f"; shoal models show {told['model']}"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def lost_line(summary: "RunSummary") -> str:
    """Say what happened during the run."""
    count = f"{summary.losses} losses" if summary.losses > 1 else "1 loss"
    aside = "; ".join(f"worker {worker} is quarantined ({why})" for worker, why in summary.quarantined.items())
    return f"shoal: {count} on the way{f'; {aside}' if aside else ''}"


def keep_summary(summary: "RunSummary", job: "LaunchJob") -> None:
    """Write the run's last file; where that is impossible, what was trained is trained, and the events tell as much."""
    from shoal.watch.record import SUMMARY
    from shoal.watch.summary import write_summary

    try:
        write_summary(job.dir, summary)
    except OSError as error:
        where = shown(job.dir / SUMMARY)
        typer.echo(f"shoal: cannot write {where}: {error.strerror}; shoal show {job.run} computes it", err=True)


def explain(failure: "RunFailure", job: "LaunchJob") -> None:
    """Why the run ended: a traceback once, or one line that names rank and signal."""
    who = failure.who
    if failure.signal is not None:
        others = "; the others were stopped" if job.workers > 1 else ""
        memory = ": the kernel killed it for want of memory" if failure.oom else ""
        typer.echo(f"shoal: {who} died of {signal_name(failure.signal)}{memory}{others}", err=True)
    elif failure.report is not None:
        for line in failure.report.traceback.rstrip().splitlines():
            typer.echo(f"[{failure.rank}] {line}", err=True)
        also = f" (and so did {', '.join(f'worker {r}' for r in failure.also)})" if failure.also else ""
        typer.echo(f"shoal: {who} failed{also}: {failure.report.error}", err=True)
    else:
        typer.echo(f"shoal: {who} ended without a word (os._exit?)", err=True)
    typer.echo(f"shoal: the record is in {shown(job.dir)}", err=True)


def signal_name(number: int) -> str:
    """A signal as people know it: `SIGKILL (signal 9)`."""
    import signal

    known = {each.value: each.name for each in signal.Signals}
    return f"{known[number]} (signal {number})" if number in known else f"signal {number}"


def shown(directory: Path) -> str:
    """A path as the user would write it."""
    try:
        return str(directory.relative_to(Path.cwd()))
    except ValueError:
        return str(directory)
