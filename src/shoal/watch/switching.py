"""Whether a live run can be switched to a plan: what `shoal switch` and the page ask before anybody hears of it."""

from pathlib import Path

from shoal.core.errors import UsageError
from shoal.core.events import LoaderJoined, ModelsJoined, WorkerStarted
from shoal.launch.live_runs import RunNotice
from shoal.plan.needs import check_joined
from shoal.plan.parts import check_all_used
from shoal.plan.plan import Plan
from shoal.plan.switching import check_switch
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
        # Of the run itself: patterns that match nothing are refused before workers hear of them.
        names = list(joined_shapes(RunRecord.open(Path(notice.dir))))
        if not names:
            raise UsageError(
                f"run {notice.run!r} has recorded no parameters yet, and parts go by their names; try again"
            )
        check_all_used(plan.patterns, names)
    _check_joined(RunRecord.open(Path(notice.dir)), plan)
    return check_switch(Plan.parse(notice.plan), plan, max(1, len(notice.members)), notice.services_stay)


def _check_joined(record: RunRecord, plan: Plan) -> None:
    """Raise UsageError if what the script has joined does not fit; nothing may be joined yet."""
    if not record.ranks:
        return
    joins, loaders = list[ModelsJoined](), list[str]()
    # Of one worker, because all run the same script.
    for event in record.events(record.ranks[0]):
        if isinstance(event, WorkerStarted):  # the script joins everything again
            joins, loaders = [], []
        elif isinstance(event, ModelsJoined) and event.misfits is not None:
            joins.append(event)
        elif isinstance(event, LoaderJoined):
            loaders.append(event.unleased)
    if joins:
        check_joined(plan, [each.misfits or {} for each in joins], loaders, len(joins[0].shapes))
