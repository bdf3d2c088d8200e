"""Runs this machine's workers in a run of another machine, and says how its part ended."""

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from shoal.core.record import RunSummary
    from shoal.launch.job import LaunchJob
    from shoal.launch.join import RemoteLauncher


def visit(job: "LaunchJob", quiet: bool) -> int:
    """Run the workers, show their output, write their record, and return the exit code."""
    from shoal.cli.ending import EXIT_FAILED, EXIT_INTERRUPTED, explain, keep_summary
    from shoal.cli.relay import JobRelay
    from shoal.launch.join import RemoteLauncher
    from shoal.watch.live import open_display
    from shoal.watch.record import RunRecord
    from shoal.watch.summary import summarise

    relay = JobRelay(job, open_display(quiet), quiet)
    launcher, failure = RemoteLauncher(job, relay), None
    typer.echo(f"shoal: joining {job.run} with workers {', '.join(map(str, job.slots))}", err=True)
    try:
        failure = launcher.run()
    except KeyboardInterrupt:
        pass  # everything is stopped; what it was like is said below
    finally:
        relay.close()
    # The run has failed elsewhere; a machine that had left by then is not to blame.
    badly = launcher.ended is not None and not launcher.ended.ended
    code = EXIT_INTERRUPTED if launcher.hurried else EXIT_FAILED if failure or (badly and not launcher.left) else 0
    summary = summarise(RunRecord.open(job.dir), code)
    keep_summary(summary, job)
    if failure:
        explain(failure, job)
    elif code or not quiet:
        typer.echo(f"shoal: {last_line(launcher, summary, job)}", err=True)
    return code


def last_line(launcher: "RemoteLauncher", summary: "RunSummary", job: "LaunchJob") -> str:
    """Say how this machine's part in the run ended."""
    from shoal.cli.ending import shown

    did = f"{summary.steps} steps and {summary.samples} samples here; the record is in {shown(job.dir)}"
    if launcher.left:
        return f"{'interrupted' if launcher.hurried else f'left {job.run}'} after {did}"
    if launcher.ended is not None and not launcher.ended.ended:
        return f"{launcher.ended.error.partition(': ')[2]}; {did}"
    if not summary.steps:
        return f"the training of {job.run} was over before this machine came in"
    return f"the training of {job.run} is over: {did}"
