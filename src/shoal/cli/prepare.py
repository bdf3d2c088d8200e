"""Turns the command's options into a job, and checks all of them before anything starts."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from shoal.cli.engine import engine_place
from shoal.cli.listen import check_listen, opened
from shoal.cli.options import AUTO, PLAN, RunOptions
from shoal.launch.policy import threads_per_worker

if TYPE_CHECKING:
    from shoal.core.record import RunInfo
    from shoal.launch.job import LaunchJob, PlacementMaker
    from shoal.plan.plan import Plan


def prepare(options: RunOptions) -> "LaunchJob":
    """Check everything that can be wrong before anything starts, then open the run's record."""
    from shoal.cli.opening import describe, open_run
    from shoal.cli.resume import from_record
    from shoal.cli.run_checks import check_lab, check_servers, check_spare, count_workers, survival, with_room
    from shoal.cli.warm import warm
    from shoal.core import record
    from shoal.core.errors import UsageError
    from shoal.core.ids import check_id, new_id

    attempts: list[RunInfo] = []
    found: Path | None = None
    if options.resume is not None:
        options, attempts, found = from_record(options)
    if options.tunes:
        options = with_room(options)
    if options.script is None:
        raise UsageError("no script; give the path of a Python file, or a run to go on with: --resume RUN")
    spec = check_lab(options.lab, options.workers) if options.lab is not None else None
    named = len(options.share.split(",")) if options.share is not None else 1  # one share for each worker
    workers = count_workers(options, spec.size if spec else named)
    chosen = check_command(options, workers)
    check_servers(options, chosen)
    place = find_place(options, chosen, lab=spec is not None)
    run_id = attempts[0].run if attempts else check_id(options.name, "--name") if options.name is not None else new_id()
    directory = found or record.run_dir(record.runs_root(options.runs), run_id).absolute()

    survive = survival(options, chosen, workers)
    spare = check_spare(options, chosen, workers, spec, survive)
    links = spec is not None or place is not None
    warm(chosen, workers + spare, links)  # slow, so only once the command is right
    from shoal.launch.job import LaunchJob
    from shoal.train.servers import make_services

    started = open_run(directory, describe(options, run_id, chosen, workers, str(spec or "")), attempts, spec)
    return LaunchJob(
        Path(options.script),
        list(options.arguments),
        workers,
        run_id,
        directory,
        str(chosen),
        started.info.seed,
        threads_per_worker(workers + spare if options.tunes else workers),
        started.lab,
        checkpoint=started.info.checkpoint,
        resume=started.checkpoint,
        attempt=started.info.attempt,
        survive=survive,
        place=place,
        make_services=partial(make_services, joinable=place is not None),
        spare=spare,
        tunes=options.tunes,
    )


def find_place(options: RunOptions, plan: "Plan", *, lab: bool) -> "PlacementMaker | None":
    """Return what makes the place of the workers, if that is neither this host alone nor a lab."""
    if options.engine is not None:
        return engine_place(options.engine, plan, options)
    listen = check_listen(options.wanted, plan, options.script or "", options.arguments, lab=lab)
    return opened(listen) if listen is not None else None


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
    from shoal.plan.terms import EveryTerm, SharedTerm

    elsewhere = {"--lab": options.lab, "--listen": options.wanted.listen, "--on": options.engine}
    option = next((name for name, value in elsewhere.items() if value is not None), None)
    if isinstance(plan.exchange, SharedTerm) and plan.pace == EveryTerm() and option is not None:
        raise UsageError(
            f"{option} with '{plan.exchange}': its workers share one host's memory, and these are on several hosts; "
            f"drop {option}, or write shared, local(16) for a copy on each host"
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
