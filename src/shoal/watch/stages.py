"""What the stages of a job took: seconds, and core-seconds of all workers that were there, from their records."""

from collections.abc import Iterable
from itertools import chain

import msgspec

from shoal.core.events import StageBegan, WorkerStarted
from shoal.watch.record import RunRecord


class StageCost(msgspec.Struct):
    """Of all stages with one name; a stage may come again."""

    stage: str
    wanted: int
    """Workers that the script asked for, when it began last."""
    times: int = 0
    seconds: float = 0.0
    """By the clock of the worker that was there longest."""
    core_seconds: float = 0.0
    """Of all workers, from their start: seconds times threads."""


def measure_stages(record: RunRecord) -> list[StageCost]:
    """Return what each stage took, in the order in which they first began; nothing for a script without stages."""
    by_worker = [list(_parts(record, rank)) for rank in record.ranks]
    # one that was killed has lost its last events
    longest = max(by_worker, key=lambda parts: sum(seconds for _, seconds, _ in parts), default=[])
    found: dict[str, StageCost] = {}
    for began, seconds, threads in sorted(chain(*by_worker), key=lambda part: part[0].at):
        cost = found.setdefault(began.stage, StageCost(began.stage, began.workers))
        cost.core_seconds += seconds * threads
    for began, seconds, _ in longest:
        cost = found[began.stage]
        cost.seconds, cost.times, cost.wanted = cost.seconds + seconds, cost.times + 1, began.workers
    return list(found.values())


def _parts(record: RunRecord, rank: int) -> Iterable[tuple[StageBegan, float, int]]:
    """Stages of one worker, how long it was in each, and its threads; its start belongs to its first stage."""
    stage: StageBegan | None = None
    since, threads, last = 0.0, 1, 0.0
    for event in record.events(rank):
        # Not every event has a time; one without counts as of the moment before it.
        at = getattr(event, "at", last)
        if isinstance(event, WorkerStarted):
            if stage is not None:  # it was killed, and another has taken its slot
                yield stage, last - since, threads
            stage, since, threads = None, at, event.threads
        elif isinstance(event, StageBegan):
            if stage is not None:
                yield stage, at - since, threads
                since = at
            stage = event
        last = max(last, at)
    if stage is not None:
        yield stage, last - since, threads
