"""A run that no worker can continue begins again at its newest checkpoint, in the same command.

    a worker dies ──> the others go on (launch/supervisor.py) ──> and if they cannot, or none is left:
                  └─> all are stopped ──> shoal run --resume, automatically, up to `--restarts` times

So it is with a single worker, with plans that leave a step open, with gloo and NCCL, and when all workers die at once.
What was done since the checkpoint is done again. Not after an exception of the script, which would only be raised
again, nor with --min-workers above 1: then fewer are to end the run.
"""

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from shoal.cli.options import RunOptions
    from shoal.launch.failures import RunFailure
    from shoal.launch.job import LaunchJob


def again(options: "RunOptions", job: "LaunchJob", failure: "RunFailure", times: int) -> "LaunchJob | None":
    """The next attempt after `times` others, if there is to be one."""
    from shoal.cli.prepare import prepare

    restarts, least = options.survive
    if times >= restarts or least > 1 or not from_outside(failure):
        return None
    why = reason(failure)
    typer.echo(f"shoal: {why}; the run begins again at its last checkpoint ({times + 1} of {restarts})", err=True)
    if job.survive is None:  # otherwise it is in the record already
        note(job, failure, f"{why}; all were stopped")
    # the plan of the checkpoint, not of the command: it may have been switched since
    return prepare(replace(options, resume=options.resume or job.run, name=None, plan=None, share=None))


def from_outside(failure: "RunFailure") -> bool:
    """Return whether the run ended for a reason outside the script: a signal, or a peer that was no longer heard.

    A peer that had done its work was not lost: the script makes more steps on some workers than on others.
    """
    return failure.signal is not None or (failure.report is not None and failure.report.peer and not failure.done)


def reason(failure: "RunFailure") -> str:
    from shoal.cli.ending import signal_name

    if failure.signal is not None:
        return f"{failure.who} died of {'oom' if failure.oom else signal_name(failure.signal)}"
    assert failure.report is not None
    return failure.report.error


def note(job: "LaunchJob", failure: "RunFailure", text: str) -> None:
    """Write the loss into the record."""
    from shoal.core.events import StepFinished, WorkerLost
    from shoal.core.journal import EventJournal
    from shoal.core.record import launcher_file
    from shoal.watch.record import RunRecord

    record = RunRecord.open(job.dir)
    done = [event.step for event in record.events(failure.rank) if isinstance(event, StepFinished)]
    journal = EventJournal(launcher_file(job.dir))
    journal.emit(
        WorkerLost(
            at=time.time(),
            text=text,
            worker=failure.rank,
            reason=in_short(failure),
            step=max(done, default=-1) + 1,
            second=time.time() - record.attempts[-1].started,
            attempt=job.attempt,
        )
    )
    journal.close()


def in_short(failure: "RunFailure") -> str:
    from signal import Signals

    if failure.oom or failure.signal is None:
        return "oom" if failure.oom else "silent"
    return next((each.name for each in Signals if each.value == failure.signal), f"signal {failure.signal}")
