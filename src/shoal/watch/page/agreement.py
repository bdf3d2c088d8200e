"""How the replicas of a run agree, as plain values for JSON: local rounds, drift, staleness, shares, and switches."""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

import msgspec

from shoal.core.events import GuardChecked, PlanSwitched, StepFinished
from shoal.watch.page.run_state import RunState
from shoal.watch.page.series import rounded
from shoal.watch.worker import WorkerRecord

# One moment for each second.
WINDOW, POINTS = 60.0, 61
"""Seconds that staleness is drawn of, and at how many moments."""


def agreement(state: RunState) -> dict[str, Any]:
    """Everything but what the plan says; lists are empty where a plan has no such thing."""
    records = state.records()
    return {
        "rounds": [rounds_of(record) for record in records if record.rounds is not None],
        "drift": drift(state),
        "staleness": staleness(state),
        "shares": [msgspec.structs.asdict(event) for record in records for event in record.shares[-20:]],
        "switches": switches(records),
    }


def rounds_of(record: WorkerRecord) -> dict[str, Any]:
    """What the local rounds of one worker came to."""
    made = record.rounds
    assert made is not None
    return {
        "worker": record.rank,
        "rounds": made.rounds,
        "steps_a_round": rounded(made.steps / made.rounds) if made.rounds else None,
        "seconds_a_round": rounded(made.seconds / made.rounds) if made.rounds else None,
        "sent": made.sent,
        "wire": made.wire,
        "dropped": made.dropped,
    }


def drift(state: RunState) -> list[dict[str, Any]]:
    """What the guard measured of how far the applied updates point from exact ones: cosine 1 is no drift."""

    def row(rank: int, event: GuardChecked) -> dict[str, Any]:
        values = {"cosine": rounded(event.cosine), "budget": rounded(event.budget)}
        return {"worker": rank, "step": event.step, "action": event.action, **values}

    return [row(rank, event) for rank, event in state.guarded]


def staleness(state: RunState) -> dict[str, Any]:
    """Steps that each worker was behind the front-most one, over the last minute."""
    moments = [state.now - WINDOW + n * WINDOW / (POINTS - 1) for n in range(POINTS)]
    made = {rank: made_at(worker.recent.since(moments[0]), moments) for rank, worker in sorted(state.workers.items())}
    known = {rank: counts for rank, counts in made.items() if any(count is not None for count in counts)}
    columns = zip(*known.values(), strict=True)
    front = [max((count for count in column if count is not None), default=0) for column in columns]
    behind = {
        rank: [None if count is None else ahead - count for count, ahead in zip(counts, front, strict=True)]
        for rank, counts in known.items()
    }
    return {"seconds": [round(moment - state.now, 3) for moment in moments], "workers": behind}


def made_at(steps: Iterable[StepFinished], moments: list[float]) -> list[int | None]:
    """How many steps a worker had made at each moment; None before the first that is known."""
    ends, counts = [], []
    for step in steps:
        ends.append(step.at)
        counts.append(step.step + step.steps)
    places = [bisect_right(ends, moment) for moment in moments]
    return [counts[place - 1] if place else None for place in places]


def switches(records: list[WorkerRecord]) -> list[dict[str, Any]]:
    """Every switch of the plan once, in order, whichever worker reported it first."""
    told: dict[tuple[int, str], PlanSwitched] = {}
    for event in sorted((event for record in records for event in record.switched), key=lambda event: event.at):
        # Every worker records the switch; the first in time stands for all.
        told.setdefault((event.step, event.plan), event)
    return [msgspec.structs.asdict(event) for event in told.values()]
