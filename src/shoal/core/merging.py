"""Merges events of a worker that lie so far back that single steps do not matter any more, and loses no total.

    step step step step | report | step step …   ──>   step (of 4 steps) | report | step …

Steps of a block become one event with their sums, logged values one event with their means; of figures that are told
again and again the newest stays. Blocks end at multiples of `width`, so those of several workers fit together, and
where a reader needs the steps before apart from those after: a start, a report, the end of the first epoch.
"""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from msgspec import structs

from shoal.core.events import (
    SECONDS,
    AnyEvent,
    BucketFigures,
    Buckets,
    Entered,
    Guarded,
    Layers,
    Logged,
    Reported,
    Saved,
    Started,
    Step,
    Traffic,
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
_BUCKET_MEANS = [field.name for field in structs.fields(BucketFigures) if field.type is float]
BucketsLike = TypeVar("BucketsLike")
"""`Buckets`, or what a reader makes of it, with fields of the same names."""


class EventMerger:
    """Give it a worker's events in order; `thin` also leaves out every second report and note of a checkpoint."""

    def __init__(self, width: int, thin: bool = False) -> None:
        self._width, self._thin = width, thin
        self._step: Step | None = None
        self._logged: Logged | None = None
        self._first_epoch: int | None = None
        self._newest: dict[object, AnyEvent] = {}
        """What the next of its kind replaces or is merged with."""
        self._odd: set[type] = set()

    def add(self, event: AnyEvent) -> Iterator[AnyEvent]:
        """Take in an event; gives those that are settled by it."""
        match event:
            case Step():
                yield from self._add_step(event)
            case Logged():
                yield from self._add_logged(event)
            case Layers() | Traffic():
                self._newest[type(event)] = event
            case Buckets():
                yield from self._add_buckets(event)
            case Guarded(action="kept"):
                self._newest[Guarded] = event
            case Reported() | Saved() if self._thin and self._leaves_out(type(event)):
                pass
            case _:
                yield from self._add_other(event)

    def end(self) -> Iterator[AnyEvent]:
        """What is still open; nothing is added afterwards."""
        yield from self._end_block()
        yield from self._newest.values()
        self._newest.clear()

    def _add_step(self, event: Step) -> Iterator[AnyEvent]:
        if self._first_epoch is None:
            self._first_epoch = event.epoch
        before = self._step
        if before is not None and before.epoch == self._first_epoch != event.epoch:
            yield from self._end_block()
            before = None
        self._step = event if before is None else merge_steps(before, event)
        if (event.step + event.steps) // self._width > self._step.step // self._width:
            block, self._step = self._step, None
            yield block

    def _add_logged(self, event: Logged) -> Iterator[AnyEvent]:
        before = self._logged
        if before is not None and event.step // self._width > before.step // self._width:
            yield before
            before = None
        self._logged = event if before is None else merge_logged(before, event)

    def _add_buckets(self, event: Buckets) -> Iterator[AnyEvent]:
        old = self._newest.get(event.join)
        if isinstance(old, Buckets):
            if is_same_exchange(old, event):
                event = merge_buckets(old, event)
            else:
                yield old
        self._newest[event.join] = event

    def _add_other(self, event: AnyEvent) -> Iterator[AnyEvent]:
        if isinstance(event, Started | Entered | Reported):
            yield from self._end_block()
        elif isinstance(event, Guarded):
            self._newest.pop(Guarded, None)
        yield event

    def _leaves_out(self, kind: type) -> bool:
        self._odd ^= {kind}
        return kind in self._odd

    def _end_block(self) -> Iterator[AnyEvent]:
        yield from (event for event in (self._step, self._logged) if event is not None)
        self._step = self._logged = None


def merged(events: Iterable[AnyEvent], width: int, thin: bool = False) -> list[AnyEvent]:
    """All of some events, in order."""
    merger = EventMerger(width, thin)
    return [*(out for event in events for out in merger.add(event)), *merger.end()]


def merge_steps(first: Step, second: Step) -> Step:
    """Both as one event: sums. When a bucket was ready and done is a matter of single steps."""
    sums = {name: getattr(first, name) + getattr(second, name) for name in _STEP_SUMS}
    rounded = {name: round(value, SECONDS) for name, value in sums.items()}
    both = first.steps + second.steps
    return structs.replace(first, at=second.at, epoch=second.epoch, steps=both, ready=(), done=(), **rounded)


def merge_logged(first: Logged, second: Logged) -> Logged:
    """The mean of both, each name by how often it was logged; a value that is not a number stays visible."""
    values = dict(first.values)
    for name, value in second.values.items():
        before = values.get(name)
        total = first.steps + second.steps
        values[name] = value if before is None else (before * first.steps + value * second.steps) / total
    return structs.replace(first, at=second.at, values=values, steps=first.steps + second.steps)


def split_step(event: Step, steps: int) -> Step:
    """About the first `steps` steps of several: their share of every sum."""
    share = steps / event.steps
    sums = {name: getattr(event, name) * share for name in _STEP_SUMS}
    whole = {name: round(value) if isinstance(getattr(event, name), int) else value for name, value in sums.items()}
    return structs.replace(event, steps=steps, **whole)


def is_same_exchange(old: BucketsLike, new: BucketsLike) -> bool:
    """Whether two events tell of the same join, codec and buckets, so that their means may be merged."""

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
