"""`shoal stop`: end a live run, with a checkpoint, or at once.

Exit codes: 0 it has ended · 1 it has not · 2 there is no such run.
"""

import signal
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.launch.live_runs import RunNotice

EXIT_LIVES = 1
PATIENCE, PATIENCE_NOW, PATIENCE_KILLED = 600.0, 15.0, 30.0
"""Seconds a run may take to end: well (its launcher's own patience is shorter), at once, and when it was killed."""


def stop(
    run: Annotated[str, typer.Argument(help="The run's id or folder, or id@pid of its launcher; see shoal ps.")],
    now: Annotated[bool, typer.Option("--now", help="At once, without a checkpoint.")] = False,
) -> None:
    """End a run of yours: its workers take a checkpoint and stop; 'shoal run --resume RUN' goes on."""
    from shoal.cli.errors import interruptible, usage_errors
    from shoal.launch.live_runs import live

    with usage_errors(), interruptible():
        notice = find(run, live())
        ended = stop_now(notice) if now else stop_well(notice)
        typer.echo(f"shoal: {outcome(notice, ended)}", err=True)
        if not ended:
            raise typer.Exit(EXIT_LIVES)


def find(name: str, live: "list[RunNotice]") -> "RunNotice":
    """The live run of this name, or in this folder; UsageError if there is none, or more than one."""
    from shoal.core.errors import UsageError
    from shoal.core.suggest import hint, shown
    from shoal.watch.record import is_path

    if is_path(name):
        return find_in_folder(name, live)
    found = [notice for notice in live if name in (notice.run, notice.name)]
    if len(found) == 1:
        return found[0]
    if found:
        which = ", ".join(f"{notice.name} (in {notice.dir})" for notice in found)
        raise UsageError(f"{len(found)} live runs are called {shown(name)}; say which: {which}")
    if not live:
        raise UsageError(f"no run {shown(name)} is live, nor any other of yours; shoal show lists what they left")
    way = hint(name, [notice.run for notice in live], f"live are: {', '.join(notice.name for notice in live)}")
    raise UsageError(f"no run {shown(name)} is live; {way}")


def find_in_folder(name: str, live: "list[RunNotice]") -> "RunNotice":
    """The live run whose record is in the folder `name`."""
    from pathlib import Path

    from shoal.core.errors import UsageError
    from shoal.watch.record import at_path

    directory = at_path(name)
    for notice in live:
        if Path(notice.dir).resolve() == directory:
            return notice
    others = ", ".join(notice.name for notice in live) or "none of yours"
    raise UsageError(f"the run in {name!r} is not live; live are: {others}; shoal show {name} shows what it left")


def stop_well(notice: "RunNotice") -> bool:
    """As Ctrl-C would; one that is frozen has to wake up for it."""
    # A launcher that takes no signal has ended already.
    return not notice.launcher.send(signal.SIGTERM, signal.SIGCONT) or notice.launcher.ended(PATIENCE)


def stop_now(notice: "RunNotice") -> bool:
    """Tidily, if its launcher still can; else by killing it, which ends its workers too."""
    from shoal.launch.live_runs import sweep

    launcher = notice.launcher
    # SIGCONT too: a process that is stopped receives nothing else.
    if not launcher.send(signal.SIGQUIT, signal.SIGCONT) or launcher.ended(PATIENCE_NOW):
        return True
    launcher.send(signal.SIGKILL)
    if notice.coordinator is not None:
        notice.coordinator.ended(PATIENCE_KILLED)
    ended = launcher.ended(PATIENCE_KILLED)
    # A launcher that was killed could not remove its own notice and files.
    sweep(notice)
    return ended


def outcome(notice: "RunNotice", ended: bool) -> str:
    """Say how the run ended, and how to continue it."""
    from pathlib import Path

    from shoal.core.record import runs_root
    from shoal.train.checkpoint.manifest import listed

    if not ended:
        return f"{notice.run} has not ended; end it with shoal stop --now {notice.name}"
    steps = [int(path.name.rpartition("-")[2]) for path in listed(Path(notice.dir))]
    if not steps:
        return f"{notice.run} has ended; it left no checkpoint"
    here = (runs_root() / notice.run).resolve() == Path(notice.dir).resolve()
    name = notice.run if here else notice.dir  # an id is looked for in one folder of runs
    return f"{notice.run} has ended; its checkpoint is of step {max(steps)}: go on with shoal run --resume {name}"
