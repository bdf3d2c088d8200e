"""Runs a job that `prepare` made to its end, again from a checkpoint where that helps, and says how it ended."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from shoal.cli.ending import EXIT_FAILED, EXIT_INTERRUPTED, explain, keep_summary, last_line, lost_line
from shoal.cli.options import RunOptions

if TYPE_CHECKING:
    from shoal.launch.failures import RunFailure
    from shoal.launch.job import LaunchJob


def supervise(job: "LaunchJob", options: RunOptions, *, json: bool, quiet: bool) -> int:
    """Run the job, show it, write its summary; returns the exit code."""
    import msgspec

    from shoal.cli.again import again
    from shoal.watch.record import RunRecord
    from shoal.watch.summary import summarise
    from shoal.watch.worker import find_different, find_different_remote, find_early, read_workers

    failure, code = None, EXIT_INTERRUPTED
    try:
        failure, times = launch(job, quiet), 0
        while failure is not None and (next_ := again(options, job, failure, times)) is not None:
            # Before the next attempt begins: no worker is left that could still be writing.
            sweep(job.dir)
            job, times = next_, times + 1
            failure = launch(job, quiet)
        code = EXIT_FAILED if failure else 0
    except KeyboardInterrupt:
        pass  # everything is stopped; what there is of the run is summed up below
    sweep(job.dir)
    record = RunRecord.open(job.dir)
    # Only of a run that ended well: after a failure replicas may differ by the step under way.
    workers = read_workers(record) if code == 0 else []
    # Compared by fingerprints that each worker records at its end.
    different = find_different(workers)
    warnings = (find_different_remote(workers, record.remote_ends()), find_early(workers))
    # Replicas that differ are a failure although every script ended well.
    code = EXIT_FAILED if different else code
    summary = summarise(record, code)
    keep_summary(summary, job)
    if different:
        typer.echo(f"shoal: {different}", err=True)
    elif failure:
        explain(failure, job)
    elif code or not quiet:
        typer.echo(last_line(summary, job), err=True)
    for warning in filter(None, warnings):  # no failure: a machine that joins must not be able to cause one
        typer.echo(f"shoal: warning: {warning}", err=True)
    if summary.losses and not quiet:
        typer.echo(lost_line(summary), err=True)
    if json:
        typer.echo(msgspec.json.encode(summary).decode())
    return code


def sweep(directory: Path) -> None:
    """Remove a checkpoint that a worker had begun and could not finish; no worker is left."""
    from shoal.core.disk import DISK
    from shoal.train.checkpoint.manifest import unfinished

    for part in list(unfinished(directory)):
        DISK.remove(part)


def launch(job: "LaunchJob", quiet: bool) -> "RunFailure | None":
    """Run the workers to their end, with everything that is to be seen of them."""
    from shoal.cli.relay import JobRelay
    from shoal.launch.local import LocalLauncher
    from shoal.watch.live import open_display

    relay = JobRelay(job, open_display(quiet), quiet)
    try:
        return LocalLauncher(job, relay).run()
    finally:
        relay.close()
