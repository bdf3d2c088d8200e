"""`shoal run`: train a script on several workers of this host.

Exit codes: 0 done · 1 the script failed · 2 the command was wrong · 130 interrupted.
"""

import os
from typing import Annotated

import typer

from shoal.cli.companions import RunCompanions
from shoal.cli.engine import EngineWords, find_engine, go
from shoal.cli.errors import interruptible, usage_errors
from shoal.cli.listen import ListenOptions
from shoal.cli.option_groups import with_option_groups
from shoal.cli.options import AUTO, RunOptions
from shoal.cli.run_options import LossOptions, MachineOptions, NetworkOptions, OutputOptions, TrainingOptions


@with_option_groups
def run(
    training: TrainingOptions,
    network: NetworkOptions,
    losses: LossOptions,
    machines: MachineOptions,
    output: OutputOptions,
    script: Annotated[str | None, typer.Argument(help="The training script.", show_default=False)] = None,
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Passed to the script.")] = None,
) -> None:
    """Train SCRIPT on several workers, by a plan."""
    from shoal.cli.prepare import prepare
    from shoal.cli.run_job import supervise

    with usage_errors(), interruptible():
        options = combine(training, network, losses, machines, script, tuple(arguments or ()))
        # Made first, because it refuses packages that are missing.
        beside = RunCompanions(output.watch, output.export or ())
        if network.trusted:
            os.environ["SHOAL_TRUSTED"] = "1"  # also read where torchrun starts the workers
        if network.bandwidth is not None:
            links = any((network.lab, losses.resume, machines.listen, machines.on))
            limit(network.bandwidth, links=links, trusted=network.trusted)

        if network.priority is not None:
            links = any((network.lab, losses.resume, machines.listen, machines.on))
            order_runs(network.priority, links=links, trusted=network.trusted)

        # A function, because on an engine only the head trains.
        def train(options: RunOptions) -> int:
            job = prepare(options)
            try:
                beside.start(job.dir)
                return supervise(job, options, json=output.json, quiet=output.quiet)
            finally:
                beside.close()

        engine = find_engine(engine_words(machines, output), options)
        code = train(options) if engine is None else go(engine, options, machines.dry_run, train)
        raise typer.Exit(code)


def combine(
    training: TrainingOptions,
    network: NetworkOptions,
    losses: LossOptions,
    machines: MachineOptions,
    script: str | None,
    arguments: tuple[str, ...],
) -> RunOptions:
    """Return the options that `prepare` checks; raise UsageError for a --workers that is no number."""
    count, tunes = read_workers_option(training.workers)
    return RunOptions(
        script,
        arguments,
        workers=count,
        plan=training.plan,
        name=training.name,
        runs=training.runs,
        seed=training.seed,
        lab=network.lab,
        checkpoint=losses.checkpoint,
        resume=losses.resume,
        survive=(losses.restarts, losses.min_workers),
        wanted=ListenOptions(machines.listen, machines.key, tuple(machines.allow or ()), machines.max_workers),
        share=training.share,
        data_servers=training.data_servers,
        spare=losses.spare,
        tunes=tunes,
    )


def engine_words(machines: MachineOptions, output: OutputOptions) -> EngineWords:
    flags = tuple(flag for flag, given in (("--json", output.json), ("--quiet", output.quiet)) if given)
    return EngineWords(machines.on, machines.nodes, machines.time, machines.partition, machines.dry_run, flags)


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


def order_runs(priority: str, *, links: bool, trusted: bool) -> None:
    """Let the runs of this host that have less left to send go first, where workers send over links at all."""
    from shoal.core.errors import UsageError
    from shoal.transport.job_priority import PRIORITY_VARIABLE, read_priority

    read_priority(priority)
    if trusted:
        raise UsageError(f"--priority {priority} holds for links only; leave --trusted out")
    if not links:
        note = f"--priority {priority} has no effect here: workers of one host exchange through its memory"
        typer.echo(f"shoal: note: {note}", err=True)
    os.environ[PRIORITY_VARIABLE] = priority
