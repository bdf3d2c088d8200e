"""`shoal run --resume RUN`: what a run goes on with, found in its record."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from shoal.core.errors import UsageError

if TYPE_CHECKING:
    from shoal.cli.options import RunOptions
    from shoal.core.record import RunInfo
    from shoal.lab.spec import LabSpec


def from_record(options: "RunOptions") -> "tuple[RunOptions, list[RunInfo], Path]":
    """The options of a run that goes on, completed from its record, and its folder; refuses what cannot work."""
    from shoal.core.record import fingerprint_of, read_attempts, runs_root
    from shoal.watch.record import resolve

    directory = resolve(runs_root(options.runs), options.resume)
    attempts = read_attempts(directory)
    first, last = attempts[0], attempts[-1]
    if options.name is not None:
        raise UsageError(f"--resume {first.run} --name {options.name}: a run that goes on keeps its name; drop --name")
    if options.seed is not None and options.seed != first.seed:
        raise UsageError(
            f"--seed {options.seed}: the order of samples of {first.run!r} follows from its seed {first.seed}, "
            "and it must go on in it; drop --seed"
        )
    script = options.script if options.script is not None else last.script
    if not Path(script).is_file():
        where = last.folder or "another folder"
        raise UsageError(f"no script {script!r} here; run {first.run!r} was started in {where}")
    # Only a note: a corrected script is often the reason to resume.
    if last.fingerprint and fingerprint_of(Path(script)) != last.fingerprint:
        typer.echo(f"shoal: note: {script} has changed since {first.run!r} was started", err=True)
    given = options.script is not None
    completed = replace(
        options,
        script=script,
        # The old arguments belong to the old command line; a script that is given brings its own.
        arguments=options.arguments if given else tuple(last.arguments),
        workers=options.workers if options.workers is not None else last.workers,
        plan=options.plan if options.plan is not None else last_plan(directory, last.plan),
        # The first attempt's: the order of samples has to go on.
        seed=first.seed,
        lab=options.lab if options.lab is not None else last.lab or None,
        data_servers=options.data_servers if options.data_servers is not None else last.data_servers or None,
        checkpoint=options.checkpoint if options.checkpoint is not None else last.checkpoint,
    )
    return completed, attempts, directory.absolute()


def last_plan(directory: Path, started: str) -> str:
    """The plan of the newest checkpoint, which may have been switched to; `started`: where there is none."""
    from shoal.core.errors import ShoalError
    from shoal.train.checkpoint.manifest import listed, read_manifest

    for folder in listed(directory):
        try:
            return read_manifest(folder).plan
        except (ShoalError, OSError, ValueError):
            continue  # `pick` says which were passed over
    return started


def survived(lab: "LabSpec", directory: Path) -> "LabSpec":
    """The lab without the kills it has done: they are what the run goes on after."""
    import msgspec

    from shoal.lab.actions import KillHosts
    from shoal.watch.record import RunRecord

    done = {(event.text, event.planned) for event in RunRecord.open(directory).happenings()}
    events = [
        # Not left out: whether an event with a chance happens is drawn by its number in the list.
        msgspec.structs.replace(event, chance=0.0)
        if isinstance(event.action, KillHosts) and (str(event.action), str(event.at)) in done
        else event
        for event in lab.events
    ]
    return msgspec.structs.replace(lab, events=tuple(events))


def pick(directory: Path, run: str) -> Path | None:
    """The newest checkpoint that verifies; says which were passed over, and when there is none."""
    from shoal.train.checkpoint.manifest import newest

    folder, reasons = newest(directory, run)
    for reason in reasons:
        typer.echo(f"shoal: note: passed over a checkpoint: {reason}", err=True)
    if folder is None:
        typer.echo(f"shoal: note: {run!r} has no checkpoint that can be used; it starts from the beginning", err=True)
    return folder
