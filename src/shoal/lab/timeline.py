"""When things happen: which events of a lab are due, given how long it has run and how far it has come.

Nothing here touches a network or a clock. The same spec and the same moments asked for give the same answers:

    timeline = EventTimeline(spec)
    for due in timeline.due(second=31.2, step=140):
        apply(lab, due.action)
        keep(due.applied(31.2, 140))
"""

import random

import msgspec

from shoal.core.units import MOST_NANOSECONDS, EventTime, TimeSpan
from shoal.lab.actions import (
    AnyAction,
    ChangeLinks,
    CutLinks,
    DuplicateFrames,
    FlipBits,
    FreezeHosts,
    HealPartitions,
    PartitionHosts,
    ReopenLinks,
    RestoreLinks,
    SilenceLinks,
    ThawHosts,
)
from shoal.lab.link import LabLink
from shoal.lab.spec import LabEvent, LabSpec


class AppliedEvent(msgspec.Struct, frozen=True):
    """An event as the run's record keeps it."""

    event: str
    """The event in words."""
    planned: str
    """When it was to be done: `30s` or `step 200`."""
    second: float
    """When it was done: seconds since the start."""
    step: int


class DueAction(msgspec.Struct, frozen=True):
    """Something to do now."""

    action: AnyAction
    planned: EventTime

    def applied(self, second: float, step: int) -> AppliedEvent:
        """The record of having done it."""
        return AppliedEvent(str(self.action), str(self.planned), round(second, 6), step)


class EventTimeline:
    """The events that are still to come. `seed` decides those that are left to chance; the spec's unless given."""

    def __init__(self, spec: LabSpec, seed: int | None = None) -> None:
        self._spec = spec
        seed = spec.seed if seed is None else seed
        happening = [event for number, event in enumerate(spec.events) if _happens(event, seed, number)]
        self._waiting = [(DueAction(event.action, event.at), event.lasts) for event in happening]

    @property
    def done(self) -> bool:
        return not self._waiting

    @property
    def next_second(self) -> float | None:
        """When, at the latest, to ask again; None if only steps are waited for."""
        return min((due.planned.after.seconds for due, _ in self._waiting if due.planned.after), default=None)

    @property
    def next_step(self) -> int | None:
        """The first step that must not begin before its event has happened; None if there is none."""
        return min((due.planned.step for due, _ in self._waiting if due.planned.step is not None), default=None)

    def due(self, second: float, step: int) -> list[DueAction]:
        """Everything planned up to now and not yet given out, in the order of time, then as written."""
        found: list[DueAction] = []
        # Again after each one, because an event that has begun may be due to end at the same look.
        while ready := [pair for pair in self._waiting if _reached(pair[0].planned, second, step)]:
            ready.sort(key=lambda pair: _order(pair[0].planned))
            self._waiting.remove(ready[0])
            due, lasts = ready[0]
            found.append(due)
            if lasts is not None:
                self._plan_end(due, lasts, second)
        return found

    def _plan_end(self, due: DueAction, lasts: TimeSpan, second: float) -> None:
        begun = round(second * 1e9) if due.planned.after is None else due.planned.after.nanoseconds
        end = EventTime(TimeSpan(min(begun + lasts.nanoseconds, MOST_NANOSECONDS)))
        self._waiting += [(DueAction(action, end), None) for action in undo(due.action, self._spec)]


def undo(action: AnyAction, spec: LabSpec) -> list[AnyAction]:
    """Return the action that ends `action`; links go back to their specification."""
    match action:
        case CutLinks(hosts):
            return [RestoreLinks(hosts)]
        case FreezeHosts(hosts):
            return [ThawHosts(hosts)]
        case SilenceLinks(sources, targets) if action.lasting:
            return [ReopenLinks(sources, targets)]
        case PartitionHosts():
            return [HealPartitions()]
        case DuplicateFrames(hosts) | FlipBits(hosts):
            return [type(action)(hosts, 0.0)]
        case ChangeLinks(hosts):
            return [_back(action, host, spec.hosts[host].link) for host in hosts]
    return []


def _back(change: ChangeLinks, host: int, link: LabLink) -> ChangeLinks:
    return ChangeLinks((host,), **{name: getattr(link, name) for name in change.values()})


def _happens(event: LabEvent, seed: int, number: int) -> bool:
    # A generator per event: adding one to a file must not change the fate of the others.
    return event.chance == 1 or random.Random(f"{seed} event {number}").random() < event.chance


def _reached(moment: EventTime, second: float, step: int) -> bool:
    return moment.after.seconds <= second if moment.after is not None else (moment.step or 0) <= step


def _order(moment: EventTime) -> tuple[bool, int]:
    """Times before steps: which came first cannot be known when both are past."""
    return moment.after is None, moment.after.nanoseconds if moment.after is not None else moment.step or 0
