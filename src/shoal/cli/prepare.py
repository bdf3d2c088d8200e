"""Turns the command's options into a job, and checks all of them before anything starts."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.cli.command_check import check_command
from shoal.cli.data_options import read_data_servers
from shoal.cli.engine import engine_place
from shoal.cli.listen import check_listen, opened
from shoal.cli.options import RunOptions
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
    from shoal.lab.load import write_lab

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
    data_servers, remote_data = read_data_servers(options)
    place = find_place(options, chosen, lab=spec is not None)
    run_id = attempts[0].run if attempts else check_id(options.name, "--name") if options.name is not None else new_id()
    directory = found or record.run_dir(record.runs_root(options.runs), run_id).absolute()

    survive = survival(options, chosen, workers)
    spare = check_spare(options, chosen, workers, spec, survive)
    links = spec is not None or place is not None
    warm(chosen, workers + spare, links)  # slow, so only once the command is right
    from shoal.launch.job import LaunchJob
    from shoal.train.data_role import DataRun
    from shoal.train.servers import count_tuned_servers, make_services, write_servers

    text = write_lab(spec) if spec is not None else ""
    started = open_run(directory, describe(options, run_id, chosen, workers, text), attempts, spec)
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
        tuned_servers=count_tuned_servers,
        write_servers=write_servers,
        data_servers=data_servers,
        remote_data=remote_data,
        make_data_run=DataRun,
        spare=spare,
        tunes=options.tunes,
    )


def find_place(options: RunOptions, plan: "Plan", *, lab: bool) -> "PlacementMaker | None":
    """Return what makes the place of the workers, if that is neither this host alone nor a lab."""
    if options.engine is not None:
        return engine_place(options.engine, plan, options)
    listen = check_listen(options.wanted, plan, options.script or "", options.arguments, lab=lab)
    return opened(listen) if listen is not None else None
