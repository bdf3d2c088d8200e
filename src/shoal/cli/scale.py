"""`shoal scale`: add workers to a live run, or let some leave, between two steps.

Exit codes: 0 it is so · 1 the run ended first, or the change is still under way · 2 it cannot be done.
"""

import re
import time
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal.launch.live_runs import RunNotice
    from shoal.launch.run_requests import ScaleRequest

EXIT_NOT_SCALED = 1
PATIENCE, PAUSE = 600.0, 0.05
"""Seconds in which workers come in or go, and between two looks."""


def scale(
    run: Annotated[str, typer.Argument(help="The run's id or folder, or id@pid of its launcher; see shoal ps.")],
    workers: Annotated[str, typer.Argument(metavar="+K|-K|N", help="More, fewer, or how many there are to be.")],
    worker: Annotated[
        list[int] | None, typer.Option("--worker", min=0, help="Which one is to leave; else those with high numbers.")
    ] = None,
) -> None:
    """Add workers to a run of yours, or let some leave after their step; no sample is lost or counted twice."""
    from shoal.cli.errors import interruptible, usage_errors
    from shoal.cli.stop import find
    from shoal.launch.live_runs import live
    from shoal.launch.run_requests import write_request

    with usage_errors(), interruptible():
        notice = find(run, live())
        request = plan_change(notice, workers, worker or [])
        if request is None:
            typer.echo(f"shoal: {notice.run} has {workers} workers already", err=True)
            return
        problem = wait(notice, write_request(notice, request))
        typer.echo(f"shoal: {problem or outcome(notice)}", err=True)
        if problem:
            raise typer.Exit(EXIT_NOT_SCALED)


def plan_change(notice: "RunNotice", text: str, chosen: list[int]) -> "ScaleRequest | None":
    """Return the request to the run; None if nothing changes. Raise UsageError if it cannot be done."""
    from shoal.core.errors import UsageError
    from shoal.watch.scaling import add_workers, own_members, remove_workers

    if not re.fullmatch(r"[+-]?\d{1,4}", text) or (text[0] in "+-" and not int(text)):
        raise UsageError(f"{text!r} is no number of workers; write +1 for one more, -1 for one fewer, or 4 for four")
    here = own_members(notice)
    change = int(text) if text[0] in "+-" else int(text) - len(here)
    if chosen and change != -len(set(chosen)):
        raise UsageError(f"--worker names {len(set(chosen))} to leave, and {text} is another number; drop one of them")
    if change >= 0:
        return add_workers(notice, change) if change else None
    # The highest numbers: worker 0 writes the ledger, and another one would have to take its place.
    return remove_workers(notice, chosen or here[change:])


def wait(asked: "RunNotice", token: str) -> str:
    """Until it is done; returns why it is not, empty if it is."""
    from shoal.core.clock import Deadline
    from shoal.launch.live_runs import live
    from shoal.launch.run_requests import ScaleRequest, withdraw_request

    deadline = Deadline.after(PATIENCE)
    while not deadline.expired:
        # By name with the launcher's pid: another run may take the id meanwhile.
        notice = next((each for each in live() if each.name == asked.name), None)
        if notice is None or notice.launcher.state == "gone":
            withdraw_request(asked, ScaleRequest)
            return f"{asked.run} ended before its workers were changed"
        if notice.scaled == token:
            return ""
        time.sleep(PAUSE)
    return f"{asked.run} has not changed its workers within {PATIENCE:.0f} s; shoal ps {asked.run} shows them"


def outcome(asked: "RunNotice") -> str:
    """Return the workers that train now."""
    from shoal.launch.live_runs import live

    notice = next((each for each in live() if each.name == asked.name), asked)
    return f"{asked.run} trains on {len(notice.members)} workers: {', '.join(map(str, sorted(notice.members)))}"
