"""What happens in a run, as typed records. Every part may emit; only `watch` and `cli` read.

One worker's file of events, in order:  Started (Step | Layers | Logged | Reported | Traffic | Warned)* Answered? Ended?
A file without `Ended` belongs to a worker that is still running or was killed.
"""

from typing import Protocol

import msgspec

LATENCY_VARIABLE = "SHOAL_LATENCY"
"""Set by whoever wants the event `answered`."""
SECONDS = 6
"""Digits kept of a duration in seconds: microseconds."""


class Event(msgspec.Struct, frozen=True, tag_field="event", kw_only=True):
    """Base of all events; the class name is the tag on disk."""

    at: float
    """Wall-clock time, seconds since 1970; for people. Durations never come from it."""


class Started(Event, tag="started", frozen=True, kw_only=True):
    """The worker has called `shoal.start()`."""

    rank: int
    size: int
    host: str
    pid: int
    threads: int
    device: str
    attempt: int = 1
    """Above 1: the run was continued."""


class Step(Event, tag="step", frozen=True, kw_only=True):
    """One optimizer step of one worker; the phases add up to `seconds`."""

    step: int
    epoch: int
    samples: int
    """Samples this worker consumed in this step."""
    seconds: float
    load: float
    """Waiting for the loader's next batch."""
    forward_backward: float
    """The script's own computing: `forward` and `backward`."""
    exchange_wait: float
    """Waiting for the other workers, and summing."""
    encode: float
    """Packing gradients into what travels."""
    update: float
    """Inside `optimizer.step()`."""
    other: float = 0.0
    """After `optimizer.step()`: logging, schedulers."""
    forward: float = 0.0
    """Of `forward_backward`: until the joined model returned."""
    backward: float = 0.0
    """Of `forward_backward`: the rest."""
    raw: int = 0
    """float32 bytes of what this worker offered for exchange."""
    sent: int = 0
    """Bytes of the encoded payloads that stand for it."""
    wire: int = 0
    """Bytes this worker put on sockets."""
    ready: tuple[float, ...] = ()
    """Per bucket: seconds from the start of the exchange until it was full here."""
    done: tuple[float, ...] = ()
    """Per bucket: seconds from the start of the exchange until the mean was back."""
    transfer: float = 0.0
    """Seconds in which anything was under way over links, of exchanges that ended in this step; 0: not known."""
    exposed: float = 0.0
    """Of `transfer`: seconds this worker waited; the rest was hidden behind computing."""


class Layers(Event, tag="layers", frozen=True, kw_only=True):
    """Mean seconds per step by layer (a module that owns parameters), over the steps measured so far."""

    step: int
    samples: int
    """Steps that were measured; means of 0 are of nothing."""
    backward: dict[str, float]
    """From the gradient before to this layer's own, without exchange and packing."""
    aggregation: dict[str, float]
    """From its bucket being full to the mean being back; a bucket's time is shared out by bytes."""


class Logged(Event, tag="logged", frozen=True, kw_only=True):
    """`run.log(...)`: values of one worker at one step."""

    step: int
    values: dict[str, float]


class Reported(Event, tag="reported", frozen=True, kw_only=True):
    """`run.report(...)`: results, usually once an epoch."""

    step: int
    epoch: int
    metrics: dict[str, float]


class Traffic(Event, tag="traffic", frozen=True, kw_only=True):
    """Bytes sent to each peer since the run began: rank as text -> (payload bytes, bytes on sockets)."""

    step: int
    peers: dict[str, tuple[int, int]]


class Warned(Event, tag="warned", frozen=True, kw_only=True):
    """Something the user should know, in one line."""

    text: str


class Skipped(Event, tag="skipped", frozen=True, kw_only=True):
    """A step that no worker made, because the gradients were not finite."""

    step: int
    workers: list[int]
    """Whose they were; empty if nobody's own were."""
    places: list[int]
    """Where their samples lie in the order of the epoch."""
    samples: list[str]
    """What the dataset calls them, if that is known."""


class Saved(Event, tag="saved", frozen=True, kw_only=True):
    """A checkpoint is on the disk."""

    step: int
    size: int
    """Bytes of worker 0's shard."""
    paused: float
    """Seconds the training waited for it."""
    seconds: float
    """From the pause to its being durable."""
    work: float
    """Processor seconds of the thread that wrote it."""


class Happened(Event, tag="happened", frozen=True, kw_only=True):
    """Something the launcher did to the run: an event of a lab."""

    text: str
    planned: str
    """When it was to be done: `30s`, `step 200`, or `start`."""
    second: float
    """When it was done: seconds since the first step began."""
    step: int
    """Of the front-most worker at that moment."""


class WorkerLost(Event, tag="lost", frozen=True, kw_only=True):
    """A worker was lost, and the launcher decided what becomes of run and worker."""

    text: str
    """All of it in a sentence."""
    worker: int
    reason: str
    """A signal, `oom` (the kernel killed it for want of memory), `evicted`, or `not finite`."""
    step: int
    """The one it was in."""
    second: float
    """Seconds since the run began."""
    quarantined: str = ""
    """Why it is not started again, if it is quarantined."""
    attempt: int = 1


class Answered(Event, tag="answered", frozen=True, kw_only=True):
    """How long the trained model took for one sample, where a benchmark asked for it."""

    seconds: float = 0.0
    """Median."""
    p99: float = 0.0
    """What 99 of 100 passes did not exceed."""
    passes: int = 0
    why: str = ""
    """Why it was not measured; empty if it was."""


class Ended(Event, tag="ended", frozen=True, kw_only=True):
    """The script finished (`done`) or raised (`failed`)."""

    exit: str
    error: str = ""


AnyEvent = (
    Started
    | Step
    | Layers
    | Logged
    | Reported
    | Traffic
    | Warned
    | Skipped
    | Saved
    | Happened
    | WorkerLost
    | Answered
    | Ended
)


class Sink(Protocol):
    """Takes events; must be cheap, must not raise."""

    def emit(self, event: Event) -> None: ...


class Nowhere:
    """The sink that forgets."""

    def emit(self, event: Event) -> None:
        pass
