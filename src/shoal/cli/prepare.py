"""Turns the command's options into a job, and checks all of them before anything starts."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from shoal.cli.engine import engine_place
from shoal.cli.listen import check_listen, opened
from shoal.cli.options import AUTO, PLAN, RunOptions
from shoal.launch.policy import threads_per_worker

if TYPE_CHECKING:
    from shoal.core.record import RunInfo
    from shoal.lab.spec import LabSpec
    from shoal.launch.job import LaunchJob
    from shoal.launch.policy import LossPolicy
    from shoal.plan.plan import Plan


def prepare(options: RunOptions) -> "LaunchJob":
    """Check everything that can be wrong before anything starts, then open the run's record."""
    import msgspec

    from shoal.cli.resume import from_record, pick, survived
    from shoal.core import record
    from shoal.core.errors import UsageError
    from shoal.core.ids import check_id, new_id
    from shoal.core.lock import hold

    attempts: list[record.RunInfo] = []
    found: Path | None = None
    if options.resume is not None:
        options, attempts, found = from_record(options)
    if options.tunes:
        options = with_room(options)
    if options.script is None:
        raise UsageError("no script; give the path of a Python file, or a run to go on with: --resume RUN")
    spec = check_lab(options.lab, options.workers) if options.lab is not None else None
    named = len(options.share.split(",")) if options.share is not None else 1  # one share for each worker
    workers = _count_workers(options, spec.size if spec else named)
    chosen = check_command(options, workers)
    check_servers(options, chosen)
    listen = place = None
    if options.engine is not None:
        place = engine_place(options.engine, chosen, options)
    else:
        listen = check_listen(options.wanted, chosen, options.script, options.arguments, lab=spec is not None)
        place = opened(listen) if listen is not None else None
    run_id = attempts[0].run if attempts else check_id(options.name, "--name") if options.name is not None else new_id()
    directory = found or record.run_dir(record.runs_root(options.runs), run_id).absolute()

    survive = survival(options, chosen, workers)
    spare = check_spare(options, chosen, workers, spec, survive)
    links = spec is not None or place is not None
    warm(chosen, workers + spare, links)  # slow, so only once the command is right
    from shoal.launch.job import LaunchJob
    from shoal.train.servers import plan_services

    info = describe(options, run_id, chosen, workers, str(spec or ""))
    checkpoint = None
    if attempts:
        hold(directory, run_id)
        spec = survived(spec, directory) if spec is not None else None
        checkpoint = pick(directory, run_id)
        step = int(checkpoint.name.rpartition("-")[2]) if checkpoint is not None else 0
        info = msgspec.structs.replace(info, attempt=len(attempts) + 1, step=step)
    open_record(directory, info)
    if not attempts:
        hold(directory, run_id)
    return LaunchJob(
        Path(options.script),
        list(options.arguments),
        workers,
        run_id,
        directory,
        str(chosen),
        info.seed,
        threads_per_worker(workers + spare if options.tunes else workers),
        spec,
        checkpoint=info.checkpoint,
        resume=checkpoint,
        attempt=info.attempt,
        survive=survive,
        place=place,
        services=plan_services(chosen, workers, alone=place is None),
        spare=spare,
        tunes=options.tunes,
    )


def with_room(options: RunOptions) -> RunOptions:
    """--workers auto: one worker, and memory for as many as --spare says, or as there are cores."""
    from dataclasses import replace

    from shoal.core.errors import UsageError
    from shoal.launch.policy import own_cores

    fixed = {"--lab": options.lab, "--on": options.engine, "--listen": options.wanted.listen, "--share": options.share}
    if option := next((name for name, value in fixed.items() if value is not None), None):
        raise UsageError(
            f"--workers auto with {option}: it adds workers of this host alone, to equal shares; drop {option}, or "
            "write --workers 2"
        )
    return replace(options, workers=1, spare=options.spare or own_cores() - 1)


def _count_workers(options: RunOptions, usual: int) -> int:
    """As many as are asked for, by option or by the groups of a plan file; else `usual`."""
    from shoal.core.errors import UsageError
    from shoal.plan.load import count_workers

    grouped = count_workers(options.plan or "")
    if grouped is not None and options.workers not in (None, grouped):
        raise UsageError(f"--workers {options.workers} and groups of {grouped} workers in {options.plan}; keep one")
    asked = options.workers if grouped is None else grouped
    return usual if asked is None else asked


def check_servers(options: RunOptions, plan: "Plan") -> None:
    """UsageError where the plan has servers that not all workers could reach."""
    from shoal.core.errors import UsageError
    from shoal.groups.links import trusted
    from shoal.plan.terms import ServerTerm

    if not isinstance(plan.exchange, ServerTerm):
        return
    if options.lab is not None and trusted():
        raise UsageError(f"--trusted with '{plan.exchange}': servers are reached over links under keys; drop --trusted")
    if os.environ.get("SHOAL_ENGINE", "auto") != "auto":
        raise UsageError(
            f"SHOAL_ENGINE={os.environ['SHOAL_ENGINE']} with '{plan.exchange}': unset it, or write allreduce"
        )


def survival(options: RunOptions, plan: "Plan", workers: int) -> "LossPolicy | None":
    """Return which losses the run tolerates: none if no worker could go on, or if the user needs all of them."""
    from shoal.core.errors import UsageError
    from shoal.groups.links import trusted
    from shoal.launch.policy import LossPolicy
    from shoal.plan.terms import AloneTerm, ServerTerm

    restarts, least = options.survive
    if least > workers:
        raise UsageError(f"--min-workers {least} is more than --workers {workers}; give at most {workers}")
    ours = os.environ.get("SHOAL_ENGINE", "auto") != "collective" and not (options.lab and trusted())
    ours = ours and not (options.lab and plan.order.by == "needed")  # its steps stay open while the next one begins
    if options.wanted.listen is not None or options.engine is not None:
        return LossPolicy(restarts, least)
    if options.lab and isinstance(plan.exchange, ServerTerm) and workers > 1:
        return LossPolicy(restarts, least)  # the coordinator's views tell servers between hosts who may connect
    everybody = workers + options.spare == 1 or (restarts == 0 and least == workers and not options.spare)
    if everybody or not ours or isinstance(plan.exchange, AloneTerm):
        return None
    return LossPolicy(restarts, least)


def check_spare(
    options: RunOptions, plan: "Plan", workers: int, lab: "LabSpec | None", survive: "LossPolicy | None"
) -> int:
    """Slots for workers that are added later: those the command asks for, and the idle hosts of a lab."""
    from shoal.core.errors import UsageError
    from shoal.hosts.status_board import MOST_WORKERS
    from shoal.plan.terms import AllReduceTerm

    asked = f"--spare {options.spare}"
    if options.spare and (lab is not None or options.engine is not None):
        raise UsageError(f"{asked} keeps memory on one host; drop --lab or --on, whose hosts are fixed")
    if options.spare and (survive is None or not isinstance(plan.exchange, AllReduceTerm)):
        raise UsageError(f"{asked}: the members of this run cannot change; use an allreduce plan, without --trusted")
    if workers + options.spare > MOST_WORKERS:
        raise UsageError(f"{asked} with --workers {workers} is too many for one host; give {MOST_WORKERS} in all")
    return lab.size - workers if lab is not None and survive is not None else options.spare


def warm(plan: "Plan | None" = None, workers: int = 1, links: bool = False) -> None:
    """Import, and compile, what every worker needs: they are forked with it, and share its memory."""
    import torch

    import shoal.train.run  # noqa: F401

    if plan is not None:
        from shoal.train.compiling import kernels_of_plan
        from shoal.wire import kernels

        coded = str(plan) if plan.parts else ", ".join(map(str, plan.codecs)) or str(plan.order)
        kernels.warm(kernels_of_plan(plan, workers, links), coded)
    torch.optim.SGD([torch.zeros(1)], lr=1.0)  # the first optimizer of a process imports 800 modules more


def check_command(options: RunOptions, workers: int) -> "Plan":
    """The plan, if the command makes sense; UsageError if not."""
    from shoal.core.errors import UsageError
    from shoal.hosts.status_board import MOST_WORKERS
    from shoal.plan.load import load
    from shoal.plan.rules import check
    from shoal.train.checkpoint.interval import CheckpointInterval

    if not Path(options.script or "").is_file():
        raise UsageError(f"no script {options.script!r} here; give the path of a Python file")
    if options.seed is not None and options.seed < 0:
        raise UsageError(f"--seed {options.seed} is not a seed; give a whole number, 0 or more")
    if workers > MOST_WORKERS:
        raise UsageError(f"--workers {workers} is too many for one host; give at most {MOST_WORKERS}")
    CheckpointInterval.parse(options.checkpoint or AUTO)
    chosen = load(options.plan or PLAN)
    if options.share is not None:
        chosen = with_share(chosen, options.share)
    for warning in check(chosen, workers):
        typer.echo(f"shoal: note: {warning}", err=True)
    _check_one_host(options, chosen)
    return chosen


def _check_one_host(options: RunOptions, plan: "Plan") -> None:
    """UsageError for a plan of one host's memory where workers are on several."""
    from shoal.core.errors import UsageError
    from shoal.plan.terms import SharedTerm

    elsewhere = {"--lab": options.lab, "--listen": options.wanted.listen, "--on": options.engine}
    option = next((name for name, value in elsewhere.items() if value is not None), None)
    if isinstance(plan.exchange, SharedTerm) and option is not None:
        raise UsageError(
            f"{option} with '{plan.exchange}': its workers share one host's memory, and these are on several hosts; "
            f"drop {option}, or write local(16)"
        )


def with_share(plan: "Plan", share: str) -> "Plan":
    """The plan with what --share says; UsageError if the plan says something else."""
    import msgspec

    from shoal.core.errors import UsageError
    from shoal.plan.balance import EVEN, BalanceTerm

    if plan.balance != EVEN:
        raise UsageError(f"--share {share} and '{plan.balance}' in the plan both say who computes how much; keep one")
    try:
        return msgspec.structs.replace(plan, balance=BalanceTerm(share.replace(",", ":")))
    except UsageError:
        raise UsageError(
            f"--share {share} is not a share for each worker; write --share 2,1,1 or --share auto"
        ) from None


def check_lab(lab: str, workers: int | None) -> "LabSpec":
    """The lab, if it can be had here and has a host for every worker."""
    from shoal.core.errors import UsageError
    from shoal.lab.load import load
    from shoal.lab.needs import require

    spec = load(lab)
    require()
    if workers is not None and workers > spec.size:
        raise UsageError(f"--workers {workers} is more than the lab's {spec.size} hosts; every worker has its own")
    return spec


def describe(options: RunOptions, run: str, plan: "Plan", workers: int, lab: str) -> "RunInfo":
    """Describe the run's start for its record, without the environment, which may hold secrets."""
    import sys

    from shoal.core import record

    return record.describe_run(
        run=run,
        plan=str(plan),
        workers=workers,
        seed=options.seed or 0,
        script=options.script or "",
        command=["shoal", *sys.argv[1:]],
        lab=lab,
        arguments=options.arguments,
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
