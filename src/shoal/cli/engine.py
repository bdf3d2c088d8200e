"""`shoal run --on ENGINE`: what this process is to the engine, and what follows from it.

outside    the same command is submitted, or printed with --dry-run
head       this machine's workers found the run, the engine starts the others
another    the engine has started this command here: it joins the head
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer

from shoal.cli.command_check import check_command
from shoal.cli.ending import EXIT_INTERRUPTED
from shoal.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.cli.options import RunOptions
    from shoal.hosts.arena import SharedArena
    from shoal.launch.engines.base import LaunchEngine
    from shoal.launch.job import LaunchJob, PlacementMaker
    from shoal.launch.placement import WorkerPlacement
    from shoal.plan.plan import Plan

MEET = 300.0
"""Seconds in which a machine that the engine has started must hear of the run."""


@dataclass(frozen=True)
class EngineWords:
    """The options of the command about machines; None or empty if not given."""

    on: str | None = None
    nodes: int | None = None
    time: str = ""
    partition: str = ""
    dry_run: bool = False
    flags: tuple[str, ...] = ()
    """How the run is shown."""


def find_engine(words: EngineWords, options: "RunOptions") -> "LaunchEngine | None":
    """The engine the command names, or that has started it on several machines; None: this machine alone."""
    from shoal.launch.engines.table import find_surrounding, make_engine, split_on

    # A lab and an address are this machine's: the engine around is then not asked.
    stays = options.lab is not None or options.wanted.listen is not None
    found = "" if words.on is not None or stays else find_surrounding(os.environ)
    if found:
        words = replace(words, on=found)
    if words.on is None:
        for given, option in ((words.nodes, "--nodes"), (words.time, "--time"), (words.partition, "--partition")):
            if given:
                raise UsageError(f"{option} {given} is for an engine; say which with --on, as in --on slurm")
        if words.dry_run:
            raise UsageError("--dry-run shows what is handed to an engine; say which with --on slurm or --on k8s")
        return None

    from shoal.core import record
    from shoal.core.ids import new_id
    from shoal.launch.engines.base import EngineOptions, EngineRole

    name, where = split_on(words.on)
    if options.lab is not None:
        raise UsageError(f"--on {words.on} --lab: the hosts of a lab are not the engine's; drop one of the two")
    if options.wanted.key is not None or options.wanted.allow:
        raise UsageError(f"--on {words.on} makes the keys of its machines itself; drop --key and --allow")
    # Named before it is submitted, so that a job that is queued again finds its run.
    run = options.resume or options.name or new_id()
    engine = make_engine(
        name,
        EngineOptions(
            where,
            words.nodes,
            options.workers or 1,
            words.time,
            words.partition,
            run,
            record.runs_root(options.runs).absolute(),
            rerun(words, options, run),
        ),
    )
    if found and engine.role is EngineRole.HEAD and "--quiet" not in words.flags:
        typer.echo(f"shoal: started by {found}: all its machines take part; --on local stays on this one", err=True)
    # The null engine: an ordinary run.
    alone = name == "local" and not where and (words.nodes or 1) == 1
    return None if alone and not words.dry_run else engine


def rerun(words: EngineWords, options: "RunOptions", run: str) -> tuple[str, ...]:
    """Return the words after `shoal run` for an engine that starts the command elsewhere, with a known run name."""
    said: list[str] = ["--on", str(words.on), *(["--nodes", str(words.nodes)] if words.nodes else [])]
    pairs = {
        "--workers": options.workers,
        "--plan": options.plan,
        "--runs": options.runs,
        "--seed": options.seed,
        "--checkpoint": options.checkpoint,
        "--restarts": options.survive[0],
        "--min-workers": options.survive[1],
        "--resume" if options.resume else "--name": run,
    }
    said += [word for option, value in pairs.items() if value is not None for word in (option, str(value))]
    said += words.flags
    return (*said, *([options.script] if options.script is not None else []), *options.arguments)


def go(engine: "LaunchEngine", options: "RunOptions", dry_run: bool, train: "Callable[[RunOptions], int]") -> int:
    """Do this process's part; `train` runs the head. Returns the exit code."""
    from shoal.launch.engines.base import EngineRole

    if dry_run:
        typer.echo(engine.preview())
        return 0
    if engine.role is EngineRole.SUBMIT:
        if engine.checks_first:
            check_first(options)
        return engine.submit()
    if engine.role is EngineRole.JOIN:
        return take_part(engine, options)
    options = goes_on(engine, options)
    try:
        with expiry(engine):
            code = train(replace(options, engine=engine))
    except KeyboardInterrupt:
        if not engine.expiring():
            raise
        code = EXIT_INTERRUPTED  # before the first step
    if code and engine.expiring():
        typer.echo(f"shoal: {engine.requeue()}", err=True)
    return code


def check_first(options: "RunOptions") -> None:
    """Check the command here, because in a queue its error would come hours later."""
    if options.script is not None:
        check_command(options, options.workers or 1)


def goes_on(engine: "LaunchEngine", options: "RunOptions") -> "RunOptions":
    """Run the same command, with --resume if the engine has begun the run before."""
    directory = engine.options.runs / engine.options.name
    if options.resume is None and engine.begins_again and (directory / "run.json").exists():
        typer.echo(f"shoal: {engine.name} starts {engine.options.name} again; it goes on from its checkpoint", err=True)
        # Name and seed are those of the record, and a resumed run refuses others.
        return replace(options, resume=engine.options.name, name=None, seed=None)
    return replace(options, name=options.name or (engine.options.name if options.resume is None else None))


@contextmanager
def expiry(engine: "LaunchEngine") -> Iterator[None]:
    """On SIGUSR1, by which an engine asks for its machines back, save a checkpoint and end."""

    def heard(number: int, frame: FrameType | None) -> None:
        engine.expire()
        # As Ctrl-C: workers save a checkpoint and end.
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, heard)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def take_part(engine: "LaunchEngine", options: "RunOptions") -> int:
    """On a machine that the engine has started beside the head."""
    from shoal.cli.join import join_run
    from shoal.core.clock import Deadline
    from shoal.transport.keys import KeyFile

    # The head makes the keys of each run, so every machine has to be brought one.
    where, secret = engine.receive(Deadline.after(MEET))
    known = KeyFile.parse(secret.encode(), f"the key that {engine.name} has brought")
    return join_run(where, known, engine.options.workers, engine.options.runs, engine.own_name)


def engine_place(engine: "LaunchEngine", plan: "Plan", options: "RunOptions") -> "PlacementMaker":
    """Makes the place of the first machine; what cannot work is refused now."""
    from shoal.cli.listen import brief, check_plan, check_script
    from shoal.launch.address import check_own, parse
    from shoal.launch.engines.placement import EngineListener, EnginePlacement

    check_plan(plan, lab=False)
    check_script(Path(options.script or ""), options.arguments)
    host, port = parse(options.wanted.listen, "--listen", least=0) if options.wanted.listen else engine.address()
    check_own(host, port, f"--on {engine.name}")
    listener = EngineListener(engine, options.wanted.most, host, port)

    def make(job: "LaunchJob", arena: "SharedArena") -> "WorkerPlacement":
        from shoal.launch.join_request import versions
        from shoal.membership.grants import JoinPolicy

        welcome = JoinPolicy(brief(job), versions(), listener.listen.allowed, job.workers, listener.listen.most)
        return EnginePlacement(engine, listener, welcome, arena, job)

    return make
