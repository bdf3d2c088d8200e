"""Turns the command's options into a job, and checks all of them before anything starts."""

from dataclasses import dataclass
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
    from shoal.cli.opening import OpenedRun
    from shoal.core.record import RunInfo
    from shoal.lab.spec import LabSpec
    from shoal.launch.data_seats import RemoteDataServer
    from shoal.launch.job import LaunchJob, PlacementMaker
    from shoal.launch.policy import LossPolicy
    from shoal.plan.plan import Plan


@dataclass(frozen=True)
class CheckedRun:
    """A command that can run: what its options come to."""

    options: RunOptions
    plan: "Plan"
    workers: int
    lab: "LabSpec | None"
    place: "PlacementMaker | None"
    survive: "LossPolicy | None"
    spare: int
    """Slots kept free for workers that are added while the run trains."""
    data_servers: int
    """How many the launcher starts."""
    remote_data: "tuple[RemoteDataServer, ...]"
    """Data servers that other commands have started."""


def prepare(options: RunOptions) -> "LaunchJob":
    """Check everything that can be wrong before anything starts, then open the run's record."""
    from shoal.cli.opening import describe, open_run
    from shoal.cli.resume import from_record
    from shoal.cli.warm import warm
    from shoal.core import record
    from shoal.lab.load import write_lab

    attempts: list[RunInfo] = []
    found: Path | None = None
    if options.resume is not None:
        # First, because the record completes the options that are checked below.
        options, attempts, found = from_record(options)
    checked = check_run(options)
    run_id = attempts[0].run if attempts else name_run(options)
    directory = found or record.run_dir(record.runs_root(options.runs), run_id).absolute()
    # Where nothing crosses a socket, fewer kernels have to be compiled.
    links = checked.lab is not None or checked.place is not None
    warm(checked.plan, checked.workers + checked.spare, links)  # slow, so only once the command is right
    # The canonical text, so that a lab file may change or vanish afterwards.
    text = write_lab(checked.lab) if checked.lab is not None else ""
    described = describe(checked.options, run_id, checked.plan, checked.workers, text)
    started = open_run(directory, described, attempts, checked.lab)
    return make_job(checked, started, directory)


def check_run(options: RunOptions) -> CheckedRun:
    """Check all options against each other, the script and the plan."""
    from shoal.cli.run_checks import check_lab, check_servers, check_spare, count_workers, survival, with_room
    from shoal.core.errors import UsageError

    if options.tunes:
        options = with_room(options)
    if options.script is None:
        raise UsageError("no script; give the path of a Python file, or a run to go on with: --resume RUN")
    lab = check_lab(options.lab, options.workers) if options.lab is not None else None
    named = len(options.share.split(",")) if options.share is not None else 1  # one share for each worker
    workers = count_workers(options, lab.size if lab else named)
    plan = check_command(options, workers)
    check_servers(options, plan)
    data_servers, remote_data = read_data_servers(options)
    place = find_place(options, plan, lab=lab is not None)
    survive = survival(options, plan, workers)
    spare = check_spare(options, plan, workers, lab, survive)
    return CheckedRun(options, plan, workers, lab, place, survive, spare, data_servers, remote_data)


def name_run(options: RunOptions) -> str:
    """Return the run's id: the given one, or a new one."""
    from shoal.core.ids import check_id, new_id

    return check_id(options.name, "--name") if options.name is not None else new_id()


def make_job(checked: CheckedRun, started: "OpenedRun", directory: Path) -> "LaunchJob":
    """Put together what the launcher runs."""
    # Imported late: these import torch, which takes seconds that a wrong command must not cost.
    from shoal.launch.job import LaunchJob
    from shoal.train.data_role import DataRun
    from shoal.train.servers import count_tuned_servers, make_services, write_servers

    options, workers = checked.options, checked.workers
    return LaunchJob(
        Path(options.script or ""),
        list(options.arguments),
        workers,
        started.info.run,
        directory,
        str(checked.plan),
        started.info.seed,
        threads_per_worker(workers + checked.spare if options.tunes else workers),
        started.lab,
        checkpoint=started.info.checkpoint,
        resume=started.checkpoint,
        attempt=started.info.attempt,
        survive=checked.survive,
        place=checked.place,
        make_services=partial(make_services, joinable=checked.place is not None),
        tuned_servers=count_tuned_servers,
        write_servers=write_servers,
        data_servers=checked.data_servers,
        remote_data=checked.remote_data,
        make_data_run=DataRun,
        spare=checked.spare,
        tunes=options.tunes,
    )


def find_place(options: RunOptions, plan: "Plan", *, lab: bool) -> "PlacementMaker | None":
    """Return what makes the place of the workers, if that is neither this host alone nor a lab."""
    if options.engine is not None:
        return engine_place(options.engine, plan, options)
    listen = check_listen(options.wanted, plan, options.script or "", options.arguments, lab=lab)
    return opened(listen) if listen is not None else None
