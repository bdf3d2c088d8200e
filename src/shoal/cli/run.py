"""`shoal run`: train a script on several workers of this host.

Exit codes: 0 done · 1 the script failed · 2 the command was wrong · 130 interrupted.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.ending import EXIT_FAILED, EXIT_INTERRUPTED, explain, last_line, lost_line
from shoal.cli.listen import MOST_GUESTS, NOBODY, Wanted, check_listen, opened
from shoal.cluster.launch.threads import threads_per_worker

if TYPE_CHECKING:
    from shoal.cluster.lab.spec import Spec
    from shoal.cluster.launch.blame import Failure
    from shoal.cluster.launch.job import Job
    from shoal.cluster.launch.policy import Policy
    from shoal.core.record import RunInfo
    from shoal.plan.plan import Plan

PLAN, AUTO = "allreduce, every(1)", "auto"
"""What a run is started with if the command does not say."""


@dataclass(frozen=True)
class Options:
    """What the command was given; None where the user said nothing."""

    script: str | None
    arguments: tuple[str, ...] = ()
    workers: int | None = None
    plan: str | None = None
    name: str | None = None
    runs: str | None = None
    seed: int | None = None
    lab: str | None = None
    checkpoint: str | None = None
    resume: str | None = None
    survive: tuple[int, int] = (3, 1)
    """Restarts of a lost worker, and the least number of living ones."""
    wanted: Wanted = NOBODY
    """Who may join."""


def run(
    script: Annotated[str | None, typer.Argument(help="The training script.", show_default=False)] = None,
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Passed to the script.")] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", "-w", help="Worker processes; else 1, or one for each host of the lab.")
    ] = None,
    plan: Annotated[
        str | None, typer.Option(help="A plan, a named plan, or a TOML file; else 'allreduce, every(1)'.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The run's id; made up if left out.")] = None,
    runs: Annotated[str | None, typer.Option(help="Folder of runs; else $SHOAL_RUNS, else ./runs.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the sample order and all random numbers; else 0.")] = None,
    lab: Annotated[
        str | None, typer.Option(metavar="SPEC", help="Emulated hosts: '4 hosts, 100mbit, 20ms' or a TOML file.")
    ] = None,
    trusted: Annotated[
        bool, typer.Option("--trusted", help="Between hosts use gloo: no keys, for a network that is yours alone.")
    ] = False,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="WHEN", help="auto (the default), off, a time (30s) or 500steps.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Go on with this run; what is not given comes from its record.")
    ] = None,
    bandwidth: Annotated[
        str | None, typer.Option(metavar="RATE", help="The most a worker sends over links: 50mbit; else no limit.")
    ] = None,
    restarts: Annotated[int, typer.Option(min=0, help="How often a lost worker is started again.")] = 3,
    min_workers: Annotated[int, typer.Option(min=1, help="Fewer living workers end the run.")] = 1,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Let other machines join: they type shoal join HOST:PORT.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="FILE", help="Of --listen: made by shoal keys new; who has it may join.")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="PUBLIC[=K]", help="Another machine's own key, for K workers (1).")
    ] = None,
    max_workers: Annotated[int, typer.Option(min=1, help="So many may join with the key of --listen.")] = MOST_GUESTS,
    json: Annotated[bool, typer.Option("--json", help="Last line of output: one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only errors (and the JSON object).")] = False,
) -> None:
    """Train SCRIPT on several workers, by a plan."""
    from shoal.cli.errors import usage_errors

    words = tuple(arguments or ())
    survive = (restarts, min_workers)
    wanted = Wanted(listen, key, tuple(allow or ()), max_workers)
    options = Options(script, words, workers, plan, name, runs, seed, lab, checkpoint, resume, survive, wanted)
    with usage_errors(), interruptible():
        if trusted:
            os.environ["SHOAL_TRUSTED"] = "1"  # also read where torchrun starts the workers
        if bandwidth is not None:
            limit(bandwidth, links=lab is not None or resume is not None, trusted=trusted)
        job = prepare(options)
        raise typer.Exit(supervise(job, json=json, quiet=quiet))


def limit(bandwidth: str, *, links: bool, trusted: bool) -> None:
    """Let workers send no faster than this, where they send over links at all."""
    from shoal.cluster.links.allowance import BANDWIDTH_VARIABLE, checked
    from shoal.core.errors import UsageError

    checked(bandwidth)
    if trusted:
        raise UsageError(f"--bandwidth {bandwidth} holds for links only; leave --trusted out, or limit the device")
    if not links:
        note = f"--bandwidth {bandwidth} has no effect here: workers of one host exchange through its memory"
        typer.echo(f"shoal: note: {note}", err=True)
    os.environ[BANDWIDTH_VARIABLE] = bandwidth


@contextmanager
def interruptible() -> Iterator[None]:
    """From the first moment to the last: Ctrl-C, SIGTERM and SIGHUP end the command with 130, not in a traceback."""
    from shoal.cluster.launch.signals import as_interrupts

    try:
        with as_interrupts():
            yield
    except KeyboardInterrupt:
        typer.echo("shoal: interrupted", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def prepare(options: Options) -> "Job":
    """Check everything that can be wrong before anything starts, then open the run's record."""
    import msgspec

    from shoal.cli.resume import from_record, pick
    from shoal.core import record
    from shoal.core.errors import UsageError
    from shoal.core.ids import check_id, new_id
    from shoal.core.lock import hold

    attempts: list[record.RunInfo] = []
    if options.resume is not None:
        options, attempts = from_record(options)
    if options.script is None:
        raise UsageError("no script; give the path of a Python file, or a run to go on with: --resume RUN")
    spec = check_lab(options.lab, options.workers) if options.lab is not None else None
    workers = options.workers if options.workers is not None else spec.size if spec else 1
    chosen = check_command(options, workers)
    listen = check_listen(options.wanted, chosen, options.script, options.arguments, lab=spec is not None)
    run_id = attempts[0].run if attempts else check_id(options.name, "--name") if options.name is not None else new_id()
    directory = record.run_dir(record.runs_root(options.runs), run_id).absolute()

    warm(codecs=bool(chosen.codecs))  # slow, so only once the command is right
    from shoal.cluster.launch.job import Job

    info = describe(options, run_id, chosen, workers, str(spec or ""))
    checkpoint = None
    if attempts:
        hold(directory, run_id)
        checkpoint = pick(directory, run_id)
        step = int(checkpoint.name.rpartition("-")[2]) if checkpoint is not None else 0
        info = msgspec.structs.replace(info, attempt=len(attempts) + 1, step=step)
    open_record(directory, info)
    if not attempts:
        hold(directory, run_id)
    return Job(
        Path(options.script),
        list(options.arguments),
        workers,
        run_id,
        directory,
        str(chosen),
        info.seed,
        threads_per_worker(workers),
        spec,
        checkpoint=info.checkpoint,
        resume=checkpoint,
        attempt=info.attempt,
        survive=survival(options, chosen, workers),
        place=opened(listen) if listen is not None else None,
    )


def survival(options: Options, plan: "Plan", workers: int) -> "Policy | None":
    """What may be lost: nothing where nobody could go on, or where the user wants everybody."""
    from shoal.cluster.launch.policy import Policy
    from shoal.cluster.linked import trusted
    from shoal.core.errors import UsageError
    from shoal.plan.terms import AllReduce

    restarts, least = options.survive
    if least > workers:
        raise UsageError(f"--min-workers {least} is more than --workers {workers}; give at most {workers}")
    ours = os.environ.get("SHOAL_ENGINE", "auto") != "collective" and not (options.lab and trusted())
    ours = ours and not (options.lab and plan.order.by == "needed")  # its steps stay open while the next one begins
    if options.wanted.listen is not None:
        return Policy(restarts, least)
    if workers == 1 or not ours or not isinstance(plan.exchange, AllReduce) or (restarts == 0 and least == workers):
        return None
    return Policy(restarts, least)


def warm(codecs: bool = False) -> None:
    """Import what every worker needs: they are forked with it, and share its memory."""
    import torch

    import shoal.train.run  # noqa: F401

    if codecs:
        from shoal.wire import kernels

        kernels.warm()
    torch.optim.SGD([torch.zeros(1)], lr=1.0)  # the first optimizer of a process imports 800 modules more


def check_command(options: Options, workers: int) -> "Plan":
    """The plan, if the command makes sense; UsageError if not."""
    from shoal.cluster.board import MOST_WORKERS
    from shoal.core.errors import UsageError
    from shoal.plan.load import load
    from shoal.plan.rules import check
    from shoal.train.checkpoint.interval import Interval

    if not Path(options.script or "").is_file():
        raise UsageError(f"no script {options.script!r} here; give the path of a Python file")
    if options.seed is not None and options.seed < 0:
        raise UsageError(f"--seed {options.seed} is not a seed; give a whole number, 0 or more")
    if workers > MOST_WORKERS:
        raise UsageError(f"--workers {workers} is too many for one host; give at most {MOST_WORKERS}")
    Interval.parse(options.checkpoint or AUTO)
    chosen = load(options.plan or PLAN)
    for warning in check(chosen, workers):
        typer.echo(f"shoal: note: {warning}", err=True)
    return chosen


def check_lab(lab: str, workers: int | None) -> "Spec":
    """The lab, if it can be had here and has a host for every worker."""
    from shoal.cluster.lab.load import load
    from shoal.cluster.lab.needs import require
    from shoal.core.errors import UsageError

    spec = load(lab)
    require()
    if workers is not None and workers > spec.size:
        raise UsageError(f"--workers {workers} is more than the lab's {spec.size} hosts; every worker has its own")
    return spec


def describe(options: Options, run: str, plan: "Plan", workers: int, lab: str) -> "RunInfo":
    """What the run is started with, for its record: never anything of the environment, which may hold secrets."""
    import sys
    import time

    from shoal.core import record

    return record.RunInfo(
        run=run,
        plan=str(plan),
        workers=workers,
        seed=options.seed or 0,
        script=options.script or "",
        command=["shoal", *sys.argv[1:]],
        started=time.time(),
        versions=record.versions(),
        machine=record.machine(),
        lab=lab,
        arguments=list(options.arguments),
        folder=str(Path.cwd()),
        fingerprint=record.fingerprint_of(Path(options.script or "")),
        checkpoint=options.checkpoint or AUTO,
    )


def open_record(directory: Path, info: "RunInfo") -> None:
    """Make the run's folder with what the run was started with, or add to it that the run goes on."""
    from shoal.core import record
    from shoal.core.errors import UsageError

    try:
        if info.attempt == 1:
            record.write_info(directory, info)
        else:
            record.write_attempt(directory, info)
            (directory / "summary.json").unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot write the record in {str(directory)!r}: {error.strerror}; choose another folder with --runs"
        ) from None


def supervise(job: "Job", *, json: bool, quiet: bool) -> int:
    """Run the job, show it, write its summary; returns the exit code."""
    import msgspec

    from shoal.watch.record import Record
    from shoal.watch.summary import summarise, write_summary

    failure, code = None, EXIT_INTERRUPTED
    try:
        failure = launch(job, quiet)
        code = EXIT_FAILED if failure else 0
    except KeyboardInterrupt:
        pass  # everything is stopped; what there is of the run is summed up below
    sweep(job.dir)
    summary = summarise(Record.open(job.dir), code)
    write_summary(job.dir, summary)
    if failure:
        explain(failure, job)
    elif code or not quiet:
        typer.echo(last_line(summary, job), err=True)
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


def launch(job: "Job", quiet: bool) -> "Failure | None":
    """Run the workers to their end, with everything that is to be seen of them."""
    from shoal.cli.relay import Relay
    from shoal.cluster.launch.local import LocalLauncher
    from shoal.watch.live import open_display

    relay = Relay(job, open_display(quiet), quiet)
    try:
        return LocalLauncher(job, relay).run()
    finally:
        relay.close()
