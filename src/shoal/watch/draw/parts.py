"""The parts of a model that have plans of their own: their sizes, and the bytes a step that were measured of each."""

from rich.table import Table
from rich.text import Text

from shoal.core.record import RunInfo
from shoal.plan.parts import match_parts
from shoal.plan.plan import Plan
from shoal.watch import figures
from shoal.watch.table import add_figures, plain_table
from shoal.watch.worker import WorkerRecord


def parts_table(info: RunInfo, workers: list[WorkerRecord]) -> Table | None:
    """One row for each part, from worker 0's measured buckets; nothing for a plan without parts."""
    worker = next((worker for worker in workers if worker.shapes), None)
    switched = [event for each in workers for event in each.switched]
    # Numbers of plans only grow, so the highest is the newest.
    plan = Plan.parse(max(switched, key=lambda event: event.number).plan if switched else info.plan)
    if worker is None or not plan.parts:
        return None
    names = list(worker.shapes)
    # By the same matching as in the run, so that rows are the run's own parts.
    chosen = dict(zip(names, match_parts(plan.patterns, names), strict=True))
    table = plain_table()
    table.add_column("part", max_width=24, no_wrap=True, overflow="crop")
    add_figures(table, "tensors", "raw", "sent")
    table.add_column("plan", overflow="fold")
    for number, part in enumerate(plan.parts):
        buckets = [
            bucket
            for exchange in worker.exchanges
            for bucket in exchange.buckets
            # A bucket holds gradients of one part, so its first layer tells which.
            if bucket.layers and chosen.get(bucket.layers[0]) == number
        ]
        table.add_row(
            Text(figures.clean(part.pattern)),
            figures.count(sum(1 for name in names if chosen[name] == number)),
            figures.size(sum(bucket.raw for bucket in buckets)),
            figures.size(sum(bucket.sent for bucket in buckets)),
            Text(figures.clean(str(part.plan))),
        )
    return table
