"""Merges events of a worker that lie so far back that single steps do not matter any more, and loses no total.

    step step step step | report | step step …   ──>   step (of 4 steps) | report | step …

Steps of a block become one event with their sums, logged values one event with their means; of figures that are told
again and again the newest stays. Blocks end at multiples of `width`, so those of several workers fit together, and
where a reader needs the steps before apart from those after: a start, a report, the end of the first epoch.
"""

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TypeVar

from msgspec import structs

from shoal.core.events import (
    SECONDS,
    AnyEvent,
    BatchesFetched,
    BucketFigures,
    BucketTimes,
    CheckpointSaved,
    DatagramsCounted,
    GuardChecked,
    LayerTimes,
    ResultsReported,
    RoundsMade,
    ServerCounted,
    StepFinished,
    TrafficCounted,
    ValuesLogged,
    WorkerEntered,
    WorkerStarted,
)

_STEP_SUMS = [
    "samples",
    "seconds",
    "load",
    "forward_backward",
    "exchange_wait",
    "encode",
    "update",
    "other",
    "forward",
    "backward",
    "raw",
    "sent",
    "wire",
    "transfer",
    "exposed",
]
_step_sums = attrgetter(*_STEP_SUMS)
_BUCKET_MEANS = [field.name for field in structs.fields(BucketFigures) if field.type is float]
BucketsLike = TypeVar("BucketsLike")
"""`BucketTimes`, or what a reader makes of it, with fields of the same names."""


class EventMerger:
    """Give it a worker's events in order; `thin` also leaves out every second report and note of a checkpoint."""

    def __init__(self, width: int, thin: bool = False) -> None:
        self._width, self._thin = width, thin
        self._steps: list[StepFinished] = []
        self._logged: ValuesLogged | None = None
        self._first_epoch: int | None = None
        self._newest: dict[object, AnyEvent] = {}
        """By kind: the event that the next one of the kind replaces or is merged with."""
        self._odd: set[type] = set()

    def add(self, event: AnyEvent) -> Iterator[AnyEvent]:
        """Take in an event; gives those that are settled by it."""
        match event:
            case StepFinished():
                yield from self._add_step(event)
            case ValuesLogged():
                yield from self._add_logged(event)
            case (
                LayerTimes() | TrafficCounted() | RoundsMade() | ServerCounted() | DatagramsCounted() | BatchesFetched()
            ):
                self._newest[type(event)] = event
            case BucketTimes():
                yield from self._add_buckets(event)
            case GuardChecked(action="kept"):
                self._newest[GuardChecked] = event
            case ResultsReported() | CheckpointSaved() if self._thin and self._leaves_out(type(event)):
                pass
            case _:
                yield from self._add_other(event)

    def end(self) -> Iterator[AnyEvent]:
        """Yield the events that are still open; nothing is added afterwards."""
        yield from self._end_block()
        yield from self._newest.values()
        self._newest.clear()

    def _add_step(self, event: StepFinished) -> Iterator[AnyEvent]:
        if self._first_epoch is None:
            self._first_epoch = event.epoch
        # The first epoch includes warm-up, which figures of a run leave out.
        if self._steps and self._steps[-1].epoch == self._first_epoch != event.epoch:
            yield from self._end_block()
        self._steps.append(event)
        # At multiples of the width instead of every so many steps, so that workers' blocks end together.
        if (event.step + event.steps) // self._width > self._steps[0].step // self._width:
            yield merge_steps(self._steps)
            self._steps = []

    def _add_logged(self, event: ValuesLogged) -> Iterator[AnyEvent]:
        before = self._logged
        if before is not None and event.step // self._width > before.step // self._width:
            yield before
            before = None
        self._logged = event if before is None else merge_logged(before, event)

    def _add_buckets(self, event: BucketTimes) -> Iterator[AnyEvent]:
        old = self._newest.get(event.join)
        if isinstance(old, BucketTimes):
            if is_same_exchange(old, event):
                event = merge_buckets(old, event)
            else:
                yield old
        self._newest[event.join] = event

    def _add_other(self, event: AnyEvent) -> Iterator[AnyEvent]:
        if isinstance(event, WorkerStarted | WorkerEntered | ResultsReported):
            yield from self._end_block()
        elif isinstance(event, GuardChecked):
            self._newest.pop(GuardChecked, None)
        yield event

    def _leaves_out(self, kind: type) -> bool:
        self._odd ^= {kind}
        return kind in self._odd

    def _end_block(self) -> Iterator[AnyEvent]:
        if self._steps:
            yield merge_steps(self._steps)
        if self._logged is not None:
            yield self._logged
        self._steps, self._logged = [], None


def merged(events: Iterable[AnyEvent], width: int, thin: bool = False) -> list[AnyEvent]:
    """All of some events, in order."""
    merger = EventMerger(width, thin)
    return [*(out for event in events for out in merger.add(event)), *merger.end()]


def merge_steps(steps: Sequence[StepFinished]) -> StepFinished:
    """All as one event: sums. When a bucket was ready and done is a matter of single steps."""
    first, last = steps[0], steps[-1]
    if len(steps) == 1:
        return first
    sums = map(sum, zip(*map(_step_sums, steps), strict=True))
    rounded = {name: round(value, SECONDS) for name, value in zip(_STEP_SUMS, sums, strict=True)}
    both = sum(step.steps for step in steps)
    return structs.replace(first, at=last.at, epoch=last.epoch, steps=both, ready=(), done=(), **rounded)


def merge_logged(first: ValuesLogged, second: ValuesLogged) -> ValuesLogged:
    """The mean of both, each name by how often it was logged; a value that is not a number stays visible."""
    values = dict(first.values)
    for name, value in second.values.items():
        before = values.get(name)
        total = first.steps + second.steps
        values[name] = value if before is None else (before * first.steps + value * second.steps) / total
    return structs.replace(first, at=second.at, values=values, steps=first.steps + second.steps)


def split_step(event: StepFinished, steps: int) -> StepFinished:
    """About the first `steps` steps of several: their share of every sum."""
    share = steps / event.steps
    sums = {name: getattr(event, name) * share for name in _STEP_SUMS}
    whole = {name: round(value) if isinstance(getattr(event, name), int) else value for name, value in sums.items()}
    return structs.replace(event, steps=steps, **whole)


def is_same_exchange(old: BucketsLike, new: BucketsLike) -> bool:
    """Return whether two events are of the same join, codec and buckets, so that their means may be merged."""

    def what(event: BucketsLike) -> object:
        return (event.join, event.codec, [bucket.layers for bucket in event.buckets])  # type: ignore[attr-defined]

    return what(old) == what(new)


def merge_buckets(old: BucketsLike, new: BucketsLike) -> BucketsLike:
    """Means over the measured steps of both."""
    before, after = old.measured, new.measured  # type: ignore[attr-defined]

    def mean(a: float, b: float) -> float:
        return float(round((a * before + b * after) / max(1, before + after), SECONDS))

    buckets = [
        structs.replace(b, **{name: mean(getattr(a, name), getattr(b, name)) for name in _BUCKET_MEANS})
        for a, b in zip(old.buckets, new.buckets, strict=True)  # type: ignore[attr-defined]
    ]
    means = {name: mean(getattr(old, name), getattr(new, name)) for name in ("span", "room", "step_seconds")}
    # what a link can do is the most it was seen to do: busy processors make it look slower than it is
    rate = max((each.rate for each in (old, new) if each.rate), default=None)  # type: ignore[attr-defined]
    rtt = min((each.rtt for each in (old, new) if each.rtt), default=None)  # type: ignore[attr-defined]
    return structs.replace(new, measured=before + after, buckets=buckets, rate=rate, rtt=rtt, **means)  # type: ignore[type-var]
