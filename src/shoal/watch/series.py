"""A logged scalar as one line over the steps: the mean over the workers that logged it."""

from collections.abc import Iterator

from shoal.core.events import ValuesLogged
from shoal.watch.record import RunRecord

Points = list[tuple[int, float]]


def main_scalar(record: RunRecord) -> str | None:
    """The name to draw: `loss` if any worker logged it, else the first logged one."""
    first = None
    for event in _logged(record):
        if "loss" in event.values:
            return "loss"
        # Kept while the search for `loss` goes on.
        first = first or next(iter(event.values), None)
    return first


def mean_over_workers(record: RunRecord, name: str) -> Points:
    """(step, mean) by step."""
    sums: dict[int, tuple[float, int]] = {}
    for event in _logged(record):
        if name in event.values:
            total, number = sums.get(event.step, (0.0, 0))
            # By step, because workers log the same step at different times.
            sums[event.step] = (total + event.values[name], number + 1)
    return [(step, total / number) for step, (total, number) in sorted(sums.items())]


def _logged(record: RunRecord) -> Iterator[ValuesLogged]:
    for rank in record.ranks:
        yield from (event for event in record.events(rank) if isinstance(event, ValuesLogged))
