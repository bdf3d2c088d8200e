"""`shoal join`: bring this machine's workers into a run that began on another.

Exit codes: 0 the training is over, or this machine left it · 1 it failed · 2 the command was wrong, or was refused ·
130 interrupted twice.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.launch.policy import threads_per_worker

if TYPE_CHECKING:
    from shoal.hosts.arena import SharedArena
    from shoal.launch.engines.lease import StdinLease
    from shoal.launch.job import LaunchJob
    from shoal.launch.placement import WorkerPlacement
    from shoal.membership.credentials import ClientCredentials
    from shoal.membership.invitation import RunBrief
    from shoal.transport.keys import KeyFile


def join(
    where: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the run listens.", show_default=False)],
    key: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="An invitation, or this machine's own pair; -: on standard input.", show_default=False
        ),
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="PUBLIC", help="The run's public key, if FILE is this machine's own.")
    ] = None,
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="Worker processes to bring.")] = 1,
    restarts: Annotated[int, typer.Option(min=0, help="How often a lost worker is started again.")] = 3,
    runs: Annotated[str | None, typer.Option(help="Folder of runs; else $SHOAL_RUNS, else ./runs.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Execute the run's script without asking.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only errors.")] = False,
) -> None:
    """Take part in a run of another machine: executes its script here, with your rights. Ctrl-C leaves it."""
    from shoal.cli.consent import agree
    from shoal.cli.errors import interruptible, usage_errors
    from shoal.cli.visit import visit
    from shoal.launch.address import parse, towards
    from shoal.transport.keys import KeyFile

    with usage_errors(), interruptible():
        host, port = parse(where, "shoal join")
        lease = None
        if key == "-":
            from shoal.launch.engines.lease import read_secret

            # The key comes by standard input where an engine starts this: arguments can be read by all users.
            text, lease = read_secret(0)
            known = credential(KeyFile.parse(text, "the text on standard input"), server, "standard input")
        else:
            known = credential(key_file(key), server, key or "")
        address, own = f"tcp://{host}:{port}", towards(host, port)
        brief = agree(address, known, workers, yes)  # before anything slow: it may be refused
        job = prepare(brief, address, known, own, restarts, runs, lease)
        raise typer.Exit(visit(job, quiet))


def join_run(where: str, found: "KeyFile", workers: int, runs: Path, name: str, restarts: int = 3) -> int:
    """Bring workers of this machine into the run at `where`; returns the exit code. An engine has started this."""
    from shoal.cli.consent import agree
    from shoal.cli.visit import visit
    from shoal.launch.address import parse, towards

    host, port = parse(where, "shoal join")
    known = credential(found, None, "the engine's key")
    address = f"tcp://{host}:{port}"
    brief = agree(address, known, workers, yes=True)
    # A folder for each machine, because an engine's machines may share the folder of runs.
    record = str(runs / brief.run / "machines" / name)
    return visit(prepare(brief, address, known, towards(host, port), restarts, record), quiet=False)


def key_file(file: str | None) -> "KeyFile":
    from shoal.core.errors import UsageError
    from shoal.transport.keys import KeyFile

    if file is None:
        raise UsageError("shoal join needs a key: --key FILE, made on the run's machine by shoal keys invite")
    return KeyFile.read(Path(file), "make one with shoal keys invite on the run's machine and copy it here")


def credential(found: "KeyFile", server: str | None, file: str) -> "ClientCredentials":
    """This machine's pair, and the public key that the run must show."""
    from shoal.core.errors import UsageError
    from shoal.membership.credentials import ClientCredentials
    from shoal.transport.keys import check_key

    run = check_key(server.encode()) if server is not None else found.run
    if run is None or run == found.keys.public:
        raise UsageError(
            f"{file!r} is a pair without the public key of a run; if it is the run's own, its holder can pose as "
            f"the run: keep it there, type shoal keys invite {file} --out NEW there, and join with NEW; if it is this "
            "machine's own, give the run's public key with --server"
        )
    if found.run is not None and found.run != run:
        raise UsageError(f"{file!r} is an invitation to another run than --server {server}; drop --server")
    return ClientCredentials(found.keys, run)


def prepare(
    brief: "RunBrief",
    address: str,
    key: "ClientCredentials",
    own: str,
    restarts: int,
    runs: str | None,
    lease: "StdinLease | None" = None,
) -> "LaunchJob":
    """A folder for this machine's part of the record, with the script in it, and what to do."""
    from shoal.cli.opening import open_joined
    from shoal.cli.warm import warm
    from shoal.core.goal import UNTIL_VARIABLE
    from shoal.membership.session import slot_of
    from shoal.plan.load import load

    plan = load(brief.plan)
    slots = tuple(slot_of(member) for member in brief.members)
    directory = open_joined(brief, slots, runs)
    script = directory / "script" / brief.name
    # A folder of its own, because the script's folder is where Python looks for modules.
    script.parent.mkdir()
    # Written with the record, so that it can be read later what was executed here.
    script.write_bytes(brief.script)
    if brief.until:
        os.environ[UNTIL_VARIABLE] = brief.until
    else:
        # The goal is the run's: one of this machine's environment would end its workers alone.
        os.environ.pop(UNTIL_VARIABLE, None)
    warm(plan, len(slots), links=True)
    from shoal.launch.job import LaunchJob
    from shoal.launch.policy import LossPolicy
    from shoal.launch.remote_placement import RemotePlacement

    def place(_: "LaunchJob", arena: "SharedArena") -> "WorkerPlacement":
        return RemotePlacement(brief, address, key, own, arena, lease)

    return LaunchJob(
        script,
        list(brief.arguments),
        len(slots),
        brief.run,
        directory,
        brief.plan,
        brief.seed,
        threads_per_worker(len(slots)),
        checkpoint=brief.checkpoint,
        survive=LossPolicy(restarts),
        place=place,
        remote_slots=slots,
    )
