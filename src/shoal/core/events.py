"""The events of a run as typed records: the life of workers here, their measurements in core/measurements.py.

One worker's file:  Started (Joined | Loader)* (Step | Layers | Buckets | Logged | Reported | …)* Answered? Ended?
A file without `WorkerEnded` belongs to a worker that is still running or was killed.
"""

from math import nan

import msgspec

# `X as X` exports: writers and readers import every event from here, because the record decodes their union
from shoal.core.event_sink import EventSink as EventSink
from shoal.core.event_sink import NullSink as NullSink
from shoal.core.event_sink import RunEvent as RunEvent
from shoal.core.measurements import LATENCY_VARIABLE as LATENCY_VARIABLE
from shoal.core.measurements import SECONDS as SECONDS
from shoal.core.measurements import BatchesFetched as BatchesFetched
from shoal.core.measurements import BucketFigures as BucketFigures
from shoal.core.measurements import BucketTimes as BucketTimes
from shoal.core.measurements import ChoiceMade as ChoiceMade
from shoal.core.measurements import CodecPriced as CodecPriced
from shoal.core.measurements import DatagramsCounted as DatagramsCounted
from shoal.core.measurements import GuardChecked as GuardChecked
from shoal.core.measurements import InferenceTimed as InferenceTimed
from shoal.core.measurements import LayerTimes as LayerTimes
from shoal.core.measurements import ResultsReported as ResultsReported
from shoal.core.measurements import RoundsMade as RoundsMade
from shoal.core.measurements import ServerCounted as ServerCounted
from shoal.core.measurements import StepFinished as StepFinished
from shoal.core.measurements import TrafficCounted as TrafficCounted
from shoal.core.measurements import ValuesLogged as ValuesLogged


class WorkerStarted(RunEvent, tag="started", frozen=True, kw_only=True):
    """The worker has called `shoal.start()`."""

    rank: int
    size: int
    host: str
    pid: int
    threads: int
    device: str
    attempt: int = 1
    """Above 1: the run was continued."""


class FileCompacted(RunEvent, tag="compacted", frozen=True, kw_only=True):
    """First line of a file whose older events were merged (core/compaction.py)."""

    size: int
    """Bytes after this line that hold merged events."""
    stood: int
    """Bytes that were there before in their place, since the file was begun."""


class ModelsJoined(RunEvent, tag="joined", frozen=True, kw_only=True):
    """The worker has called `run.join`."""

    join: int
    """Which call of the script."""
    models: list[str]
    """Their classes."""
    optimizers: list[str]
    parameters: int
    """Elements of all parameters."""
    loss: str = "mean"
    """How the script's loss combines samples: gradients of a `mean` are averaged, those of a `sum` are summed."""
    layers: dict[str, tuple[str, int]] = {}
    """Layer (a module that owns parameters) -> its class, and the elements of its parameters; in the model's order."""
    shapes: dict[str, list[int]] = {}
    """Parameter -> its shape, by the names that patterns of a plan match; in the model's order."""
    misfits: dict[str, str] | None = None
    """What plans may need of these (plan/needs.py) and do not find -> why; None if nothing of them is exchanged."""


class LoaderJoined(RunEvent, tag="loader", frozen=True, kw_only=True):
    """A loader was given to `run.join`."""

    unleased: str = ""
    """Why its samples cannot be leased; empty if they can."""


class StageBegan(RunEvent, tag="stage", frozen=True, kw_only=True):
    """The script has begun a stage of the job (`run.stage`)."""

    step: int
    stage: str
    workers: int
    """How many it wants; those that come are told by the views."""


class WarningRaised(RunEvent, tag="warned", frozen=True, kw_only=True):
    """Something the user should know, in one line."""

    text: str


class StepSkipped(RunEvent, tag="skipped", frozen=True, kw_only=True):
    """A step that no worker made, because the gradients were not finite."""

    step: int
    workers: list[int]
    """Workers whose gradients they were; empty if no worker's own were."""
    places: list[int]
    """The positions of their samples in the order of the epoch."""
    samples: list[str]
    """The dataset's own indices of these samples, if they are known."""


class CheckpointSaved(RunEvent, tag="saved", frozen=True, kw_only=True):
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


class SharesChanged(RunEvent, tag="shares", frozen=True, kw_only=True):
    """From the step after this one, workers are dealt other parts of every batch."""

    step: int
    shares: dict[str, float]
    """By slot; they add up to 1."""
    rates: dict[str, float] = {}
    """Samples per second that each worker was busy, by slot: why the shares have changed."""


class WorkerEntered(RunEvent, tag="entered", frozen=True, kw_only=True, rename={"streamed": "lent"}):
    """This worker came to a run that trained already, and has its state."""

    step: int
    given: int
    """Bytes of the state that came when it entered: the others waited for them."""
    streamed: int = 0
    """Bytes that came before, while the others trained."""
    updates: int = 0
    """Of the optimizer, made here as the others made them meanwhile."""
    seconds: float = 0.0
    """From asking to having all of it."""
    why: str = ""
    """Why nothing was streamed, where it could have been."""


class PlanSwitched(RunEvent, tag="switched", frozen=True, kw_only=True):
    """All workers train by another plan from a step on."""

    step: int
    number: int
    """Of the plan: 1 for the first switch of an attempt."""
    plan: str
    before: str
    carried: list[str] = []
    """Kinds of synchronizer state that the new plan goes on with, or adds to the next gradients."""
    dropped: list[str] = []
    """Kinds of state that it has no use for."""


class LabEventApplied(RunEvent, tag="happened", frozen=True, kw_only=True):
    """Something the launcher did to the run: an event of a lab."""

    text: str
    planned: str
    """When it was to be done: `30s`, `step 200`, or `start`."""
    second: float
    """When it was done: seconds since the first step began."""
    step: int
    """Of the front-most worker at that moment."""


class WorkersScaled(RunEvent, tag="scaled", frozen=True, kw_only=True):
    """The user wants more workers, or fewer."""

    text: str
    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    """Workers that were asked to leave after their step."""


class WorkerLost(RunEvent, tag="lost", frozen=True, kw_only=True):
    """A worker was lost, and the launcher decided what becomes of run and worker."""

    text: str
    """All of it in a sentence."""
    worker: int
    reason: str
    """A signal, `oom` (the kernel killed it for want of memory), `silent`, `evicted`, or `not finite`."""
    step: int
    """The one it was in."""
    second: float
    """Seconds since the run began."""
    quarantined: str = ""
    """Why it is not started again, if it is quarantined."""
    attempt: int = 1


class RemoteWorkerEnded(RunEvent, tag="remote_ended", frozen=True, kw_only=True):
    """A worker of another machine has ended, and reported what it holds; its record stays on that machine."""

    worker: int
    step: int
    fingerprint: str


class WorkerEnded(RunEvent, tag="ended", frozen=True, kw_only=True):
    """The script finished (`done`), raised (`failed`), or the user took this worker out of the run (`left`)."""

    exit: str
    error: str = ""
    step: int = 0
    """Steps that were made."""
    fingerprint: str = ""
    """Fingerprint of the parameters after the last step, equal on all workers; empty if it is not checked."""


AnyEvent = (
    WorkerStarted
    | FileCompacted
    | ModelsJoined
    | LoaderJoined
    | StageBegan
    | StepFinished
    | LayerTimes
    | BucketTimes
    | CodecPriced
    | GuardChecked
    | ChoiceMade
    | ValuesLogged
    | ResultsReported
    | TrafficCounted
    | RoundsMade
    | BatchesFetched
    | DatagramsCounted
    | ServerCounted
    | WarningRaised
    | StepSkipped
    | CheckpointSaved
    | SharesChanged
    | WorkerEntered
    | PlanSwitched
    | LabEventApplied
    | WorkersScaled
    | WorkerLost
    | RemoteWorkerEnded
    | InferenceTimed
    | WorkerEnded
)


_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


def decode(line: bytes) -> AnyEvent | None:
    """The event on one line, or None if there is none."""
    try:
        return _decoder.decode(line)
    except ValueError:  # msgspec's errors, and text that is not UTF-8
        return _decode_with_gaps(line)


def numbers(values: object) -> object:
    """JSON has no nan and no infinity: both are written as null, and come back as nan."""
    if not isinstance(values, dict):
        return values
    return {name: nan if value is None else value for name, value in values.items()}


def _decode_with_gaps(line: bytes) -> AnyEvent | None:
    # A loss that is no longer a number is what a reader most wants to see: it must not vanish with its line.
    try:
        # The slow way, taken only for lines that the typed decoder has refused.
        raw = msgspec.json.decode(line, type=dict[str, object])
        raw |= {field: numbers(raw[field]) for field in ("values", "metrics") if field in raw}
        event: AnyEvent = msgspec.convert(raw, AnyEvent)
        return event
    except ValueError:
        return None
