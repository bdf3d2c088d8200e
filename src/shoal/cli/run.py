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
from shoal.cli.listen import MOST_REMOTE_WORKERS, ListenOptions
from shoal.cli.options import AUTO, RunOptions
from shoal.cli.run_options import (
    AllowOption,
    BandwidthOption,
    CheckpointOption,
    DryRunOption,
    ExportOption,
    JsonOption,
    KeyOption,
    LabOption,
    ListenOption,
    MaxWorkersOption,
    MinWorkersOption,
    NameOption,
    NodesOption,
    OnOption,
    PartitionOption,
    PlanOption,
    QuietOption,
    RestartsOption,
    ResumeOption,
    RunsOption,
    SeedOption,
    ShareOption,
    SpareOption,
    TimeOption,
    TrustedOption,
    WatchOption,
    WorkersOption,
)

if TYPE_CHECKING:
    from shoal.launch.failures import RunFailure
    from shoal.launch.job import LaunchJob


def run(
    script: Annotated[str | None, typer.Argument(help="The training script.", show_default=False)] = None,
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Passed to the script.")] = None,
    workers: WorkersOption = None,
    plan: PlanOption = None,
    name: NameOption = None,
    runs: RunsOption = None,
    seed: SeedOption = None,
    lab: LabOption = None,
    trusted: TrustedOption = False,
    checkpoint: CheckpointOption = None,
    resume: ResumeOption = None,
    bandwidth: BandwidthOption = None,
    restarts: RestartsOption = 3,
    min_workers: MinWorkersOption = 1,
    spare: SpareOption = 0,
    listen: ListenOption = None,
    key: KeyOption = None,
    allow: AllowOption = None,
    on: OnOption = None,
    nodes: NodesOption = None,
    time: TimeOption = "",
    partition: PartitionOption = "",
    dry_run: DryRunOption = False,
    max_workers: MaxWorkersOption = MOST_REMOTE_WORKERS,
    share: ShareOption = None,
    watch: WatchOption = False,
    export: ExportOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train SCRIPT on several workers, by a plan."""
    from shoal.cli.prepare import prepare

    words = tuple(arguments or ())
    survive = (restarts, min_workers)
    wanted = ListenOptions(listen, key, tuple(allow or ()), max_workers)
    flags = tuple(flag for flag, given in (("--json", json), ("--quiet", quiet)) if given)
    machines = EngineWords(on, nodes, time, partition, dry_run, flags)
    with usage_errors(), interruptible():
        count, tunes = read_workers_option(workers)
        options = RunOptions(
            script, words, count, plan, name, runs, seed, lab, checkpoint, resume, survive, wanted, share, spare, tunes
        )
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


def read_workers_option(said: str | None) -> tuple[int | None, bool]:
    """The number that --workers gives, and whether the launcher finds it while the run trains."""
    from shoal.core.errors import UsageError

    if said is None or said == AUTO:
        return None, said is not None
    try:
        return int(said), False
    except ValueError:
        raise UsageError(f"--workers {said!r} is no number of worker processes; write --workers 2, or auto") from None


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
