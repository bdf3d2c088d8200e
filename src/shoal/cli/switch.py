"""`shoal switch`: let a live run go on by another plan, from the next step boundary on.

Exit codes: 0 all workers train by it · 1 the run ended first, or has not come to a boundary · 2 it cannot be done.
"""

import time
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.launch.live_runs import RunNotice
    from shoal.plan.plan import Plan

EXIT_NOT_SWITCHED = 1
PATIENCE, PAUSE = 600.0, 0.05
"""Seconds a run may take to come to a step boundary at which all members stand; and between two looks."""


def switch(
    run: Annotated[str, typer.Argument(help="The run's id or folder, or id@pid of its launcher; see shoal ps.")],
    plan: Annotated[str, typer.Argument(help="A plan, a named plan, or a TOML file.")],
) -> None:
    """Let a run of yours go on by another plan: optimizers and residuals carry over, and no sample is lost."""
    from shoal.cli.errors import interruptible, usage_errors
    from shoal.cli.stop import find
    from shoal.launch.live_runs import live
    from shoal.launch.run_requests import SwitchRequest, write_request
    from shoal.watch.switching import check_request

    with usage_errors(), interruptible():
        wanted = _load(plan)
        notice = find(run, live())
        for warning in check_request(notice, wanted):
            typer.echo(f"shoal: note: {warning}", err=True)
        # A request that is still open would change the plan after all.
        if str(wanted) == notice.plan and not notice.asked:
            typer.echo(f"shoal: {notice.run} trains by '{wanted}' already", err=True)
            return
        # Before asking: workers would all stand still while one of them compiles.
        compile_kernels(notice, wanted)
        before = count_switches(notice.dir, wanted)
        problem = wait(notice, write_request(notice, SwitchRequest(plan=str(wanted))))
        # A run may switch and end between two looks; its record then tells what its notice no longer can.
        if problem and count_switches(notice.dir, wanted) > before:
            problem = ""
        typer.echo(f"shoal: {problem}" if problem else f"shoal: {notice.run} trains by '{wanted}' now", err=True)
        if problem:
            raise typer.Exit(EXIT_NOT_SWITCHED)


def _load(text: str) -> "Plan":
    from shoal.core.errors import UsageError
    from shoal.plan.load import load

    if not text.strip():
        raise UsageError("no plan; write one, as in shoal switch RUN 'allreduce, int8'; shoal plan lists the terms")
    return load(text)


def compile_kernels(notice: "RunNotice", plan: "Plan") -> None:
    """Here, once on this machine, so that workers find them compiled and do not stand still for it."""
    from shoal.train.compiling import kernels_of_plan
    from shoal.wire import kernels

    kernels.warm(kernels_of_plan(plan, max(2, len(notice.members)), links=True), str(plan))


def count_switches(directory: str, plan: "Plan") -> int:
    """Return how often the run in this folder has gone on by a plan, as its first worker recorded it."""
    from pathlib import Path

    from shoal.core.events import PlanSwitched
    from shoal.watch.record import RunRecord

    record = RunRecord.open(Path(directory))
    switched = (event for rank in record.ranks[:1] for event in record.events(rank) if isinstance(event, PlanSwitched))
    return sum(event.plan == str(plan) for event in switched)


def wait(asked: "RunNotice", token: str) -> str:
    """Until all train by the plan; returns why they do not, empty if they do."""
    from shoal.core.clock import Deadline
    from shoal.launch.live_runs import live
    from shoal.launch.run_requests import SwitchRequest, withdraw_request

    deadline = Deadline.after(PATIENCE)
    taken = False
    while not deadline.expired:
        notice = next((each for each in live() if each.name == asked.name), None)
        if notice is None or notice.launcher.state == "gone":
            withdraw_request(asked, SwitchRequest)
            return f"{asked.run} ended before it came to a step at which it could switch; its plan was as before"
        if notice.switched == token:
            return ""
        # The launcher keeps one request, and another one has replaced it.
        if taken and notice.asked != token:
            return f"another plan was asked of {asked.run} meanwhile; this one was not tried"
        taken = taken or notice.asked == token
        time.sleep(PAUSE)
    return f"{asked.run} has not come to a step boundary within {PATIENCE:.0f} s; it switches when it does"
