"""Whether workers can be added to a live run or taken from it: what `shoal scale` and the page ask before anybody
hears of it."""

from collections.abc import Sequence

from shoal.core.errors import UsageError
from shoal.launch.live_runs import RunNotice
from shoal.launch.run_requests import ScaleRequest
from shoal.plan.plan import Plan
from shoal.plan.rules import check


def own_members(notice: RunNotice) -> list[int]:
    """Workers of this launcher that train now; workers of machines that joined are theirs to stop."""
    here = {slot.worker for slot in notice.slots if not slot.fate}
    return sorted(worker for worker in notice.members if worker in here)


def add_workers(notice: RunNotice, count: int) -> ScaleRequest:
    """Ask for `count` more; UsageError if the run cannot have them."""
    _check_live(notice)
    if count > notice.room:
        raise UsageError(
            f"run {notice.run!r} has room for {notice.room} more workers, and not for {count}; start it with "
            "shoal run --spare K to keep memory for more"
        )
    # A plan may be for a number of workers, as balance(2:1:1) is.
    check(Plan.parse(notice.plan), len(notice.members) + count)
    return ScaleRequest(add=count)


def remove_workers(notice: RunNotice, workers: Sequence[int]) -> ScaleRequest:
    """Ask these to leave; UsageError if they are not here to leave, or too few would be left."""
    _check_live(notice)
    here = own_members(notice)
    strangers = sorted(set(workers) - set(here))
    if strangers:
        raise UsageError(
            f"worker {strangers[0]} does not train here now; those of run {notice.run!r} are "
            f"{', '.join(map(str, here)) or 'none'} (a machine that joined leaves by shoal stop typed there)"
        )
    left = len(here) - len(set(workers))
    if left < max(1, notice.least):
        raise UsageError(
            f"{left} of {len(here)} workers would be left and run {notice.run!r} needs {max(1, notice.least)}; "
            f"end it with shoal stop {notice.run}"
        )
    return ScaleRequest(remove=tuple(sorted(set(workers))))


def _check_live(notice: RunNotice) -> None:
    if notice.coordinator is None:
        raise UsageError(
            f"run {notice.run!r} has no coordinator to change its members by: it has one worker and no --spare, trains "
            "by 'alone', joined from another machine, or was started with --trusted; stop it, then shoal run --resume"
        )
    if notice.stopping:
        raise UsageError(f"run {notice.run!r} is being stopped; go on with shoal run --resume --workers N")
    if not notice.members:
        raise UsageError(f"the workers of run {notice.run!r} have not met yet; ask again in a moment")
