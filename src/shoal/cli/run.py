"""`shoal run`: train a script on several workers of this host.

Exit codes: 0 done · 1 the script failed · 2 the command was wrong · 130 interrupted.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.companions import RunCompanions
from shoal.cli.ending import EXIT_FAILED, EXIT_INTERRUPTED, explain, keep_summary, last_line, lost_line
from shoal.cli.engine import EngineWords, find_engine, go
from shoal.cli.errors import interruptible, usage_errors
from shoal.cli.listen import MOST_GUESTS, ListenOptions
from shoal.cli.options import RunOptions

if TYPE_CHECKING:
    from shoal.launch.failures import RunFailure
    from shoal.launch.job import LaunchJob


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
        str | None, typer.Option(metavar="RUN", help="Id or folder of a run to go on with; its record has the rest.")
    ] = None,
    bandwidth: Annotated[
        str | None, typer.Option(metavar="RATE", help="The most a worker sends over links: 50mbit; else no limit.")
    ] = None,
    restarts: Annotated[int, typer.Option(min=0, help="How often a lost worker is started again.")] = 3,
    min_workers: Annotated[int, typer.Option(min=1, help="Fewer living workers end the run.")] = 1,
    spare: Annotated[int, typer.Option(min=0, help="Keep memory for so many workers of shoal scale RUN +K.")] = 0,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Let other machines join: they type shoal join HOST:PORT.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="FILE", help="Of --listen: the run's own pair, by shoal keys new.")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="PUBLIC[=K]", help="Another machine's own key, for K workers (1).")
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(metavar="ENGINE", help="Machines by ssh:A,B=2, slurm, ray, k8s:IMAGE, mpi or local; see docs."),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Of --on: machines in all; each has --workers workers.")
    ] = None,
    time: Annotated[str, typer.Option(metavar="TIME", help="Of --on slurm: the job's time limit, as in 2h.")] = "",
    partition: Annotated[str, typer.Option(metavar="NAME", help="Of --on slurm: where to queue.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Of --on slurm and k8s: print what would be submitted.")
    ] = False,
    max_workers: Annotated[int, typer.Option(min=1, help="So many workers of other machines, in all.")] = MOST_GUESTS,
    share: Annotated[
        str | None, typer.Option(metavar="2,1,1", help="How much of every batch each worker computes; or auto.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Serve a page that shows the run; see shoal watch.")] = False,
    export: Annotated[
        list[str] | None, typer.Option(metavar="KIND[=URI]", help="Hand the run to mlflow or otel too.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Last line of output: one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only errors (and the JSON object).")] = False,
) -> None:
    """Train SCRIPT on several workers, by a plan."""
    from shoal.cli.prepare import prepare

    words = tuple(arguments or ())
    survive = (restarts, min_workers)
    wanted = ListenOptions(listen, key, tuple(allow or ()), max_workers)
    options = RunOptions(
        script, words, workers, plan, name, runs, seed, lab, checkpoint, resume, survive, wanted, share, spare
    )
    flags = tuple(flag for flag, given in (("--json", json), ("--quiet", quiet)) if given)
    machines = EngineWords(on, nodes, time, partition, dry_run, flags)
    with usage_errors(), interruptible():
        beside = RunCompanions(watch, export or ())
        if trusted:
            os.environ["SHOAL_TRUSTED"] = "1"  # also read where torchrun starts the workers
        if bandwidth is not None:
            limit(bandwidth, links=any((lab, resume, listen, on)), trusted=trusted)

        def train(options: RunOptions) -> int:
            job = prepare(options)
            try:
                beside.start(job.dir)
                return supervise(job, options, json=json, quiet=quiet)
            finally:
                beside.close()

        engine = find_engine(machines, options)
        code = train(options) if engine is None else go(engine, options, dry_run, train)
        raise typer.Exit(code)


def limit(bandwidth: str, *, links: bool, trusted: bool) -> None:
    """Let workers send no faster than this, where they send over links at all."""
    from shoal.core.errors import UsageError
    from shoal.transport.rate_limit import BANDWIDTH_VARIABLE, checked

    checked(bandwidth)
    if trusted:
        raise UsageError(f"--bandwidth {bandwidth} holds for links only; leave --trusted out, or limit the device")
    if not links:
        note = f"--bandwidth {bandwidth} has no effect here: workers of one host exchange through its memory"
        typer.echo(f"shoal: note: {note}", err=True)
    os.environ[BANDWIDTH_VARIABLE] = bandwidth


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
            sweep(job.dir)
            job, times = next_, times + 1
            failure = launch(job, quiet)
        code = EXIT_FAILED if failure else 0
    except KeyboardInterrupt:
        pass  # everything is stopped; what there is of the run is summed up below
    sweep(job.dir)
    record = RunRecord.open(job.dir)
    workers = read_workers(record) if code == 0 else []
    different = find_different(workers)
    warnings = (find_different_remote(workers, record.remote_ends()), find_early(workers))
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
