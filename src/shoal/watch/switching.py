"""Whether a live run can be switched to a plan: what `shoal switch` and the page ask before anybody hears of it."""

from pathlib import Path

from shoal.core.errors import UsageError
from shoal.core.events import ModelsJoined
from shoal.launch.live_runs import RunNotice
from shoal.plan.parts import check_all_used
from shoal.plan.plan import Plan
from shoal.plan.switching import check_switch, steps_on_servers
from shoal.watch.model_shapes import joined_shapes
from shoal.watch.record import RunRecord


def check_request(notice: RunNotice, plan: Plan) -> list[str]:
    """Warnings of the rules; UsageError if the run cannot be switched to this plan, and then nothing was asked."""
    if notice.coordinator is None:
        raise UsageError(
            f"run {notice.run!r} has no coordinator to switch its plan by: it has one worker, trains by 'alone', or "
            "was started with --trusted or for a fixed number of workers; stop it, then shoal run --resume --plan"
        )
    if notice.stopping:
        raise UsageError(f"run {notice.run!r} is being stopped; go on by another plan with shoal run --resume --plan")
    if plan.parts:
        names = list(joined_shapes(RunRecord.open(Path(notice.dir))))
        if not names:
            raise UsageError(
                f"run {notice.run!r} has recorded no parameters yet, and parts go by their names; try again"
            )
        check_all_used(plan.patterns, names)
    if steps_on_servers(plan) and (why := _find_unserved(RunRecord.open(Path(notice.dir)))):
        raise UsageError(why)
    return check_switch(Plan.parse(notice.plan), plan, max(1, len(notice.members)), notice.services_stay)


def _find_unserved(record: RunRecord) -> str:
    """Why servers cannot take every step's changes of what was joined; empty if they can, or nothing is joined yet."""
    for rank in record.ranks:
        for event in record.events(rank):
            if isinstance(event, ModelsJoined) and event.unserved:
                return event.unserved
    return ""
