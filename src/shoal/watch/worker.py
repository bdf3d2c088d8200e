"""One worker's record in figures: a single pass over its events."""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from shoal.core.events import (
    SECONDS,
    AnyEvent,
    BatchesFetched,
    BucketTimes,
    ChoiceMade,
    CodecPriced,
    DatagramsCounted,
    GuardChecked,
    LayerTimes,
    ModelsJoined,
    PlanSwitched,
    ResultsReported,
    RoundsMade,
    ServerCounted,
    SharesChanged,
    StageBegan,
    StepFinished,
    StepSkipped,
    TrafficCounted,
    WarningRaised,
    WorkerEnded,
    WorkerEntered,
    WorkerStarted,
)
from shoal.core.record import StepPhases
from shoal.core.replicas import name_different, name_early
from shoal.watch.exchanged import ExchangeTotals, add_buckets
from shoal.watch.record import RunRecord

PHASES = StepPhases.__struct_fields__
_MEANS = ("forward", "transfer", "exposed")


class WorkerRecord(msgspec.Struct, kw_only=True):
    """What one worker did, and how it ended."""

    rank: int
    host: str = ""
    pid: int = 0
    threads: int = 0
    device: str = ""
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    """Its summed step times."""
    samples_per_second: float = 0.0
    bytes_raw: int = 0
    bytes_sent: int = 0
    bytes_wire: int = 0
    phases: StepPhases = StepPhases()
    """Mean seconds per step."""
    forward: float = 0.0
    """Of `forward_backward`: mean seconds until the model returned."""
    transfer: float = 0.0
    """Mean seconds in which anything was under way over links; 0: nothing was, or it was not measured."""
    exposed: float = 0.0
    """Of `transfer`: mean seconds it waited."""
    backward_by_layer: dict[str, float] = {}
    """Layer -> mean seconds of its backward pass."""
    aggregation_by_layer: dict[str, float] = {}
    """Layer -> mean seconds from its bucket being full to the mean being back."""
    gradient_by_layer: dict[str, float] = {}
    """Layer -> norm of its own gradient, as told last."""
    layers: dict[str, tuple[str, int]] = {}
    """Layer -> class and elements."""
    shapes: dict[str, list[int]] = {}
    """Parameter -> its shape."""
    models: list[str] = []
    """Classes of what it joined."""
    links: dict[str, tuple[float | None, float | None]] = {}
    """Peer's rank as text -> (bytes a second, seconds of a round trip), as its links estimated last."""
    metrics: dict[str, float] = {}
    """What it reported last."""
    peers: dict[str, tuple[int, int]] = {}
    """Peer's rank as text -> (payload bytes, bytes on sockets), as counted last."""
    stood_back: dict[str, float] = {}
    """Another run -> seconds in which this worker let it go first on the link they share."""
    exchanges: list[ExchangeTotals] = []
    """What each join's buckets took, where it was measured."""
    prices: list[CodecPriced] = []
    """What other codecs would cost."""
    chosen: list[ChoiceMade] = []
    """What `wire(auto)` chose."""
    shares: list[SharesChanged] = []
    """When the workers' parts of a batch changed, and why: only worker 0 tells."""
    guarded: list[GuardChecked] = []
    """What the guard found: whatever was outside its budget, and its last finding."""
    rounds: RoundsMade | None = None
    """Under `local(…)`: what its rounds came to since it was started last."""
    servers: ServerCounted | None = None
    """Under `stale(…)` and `async`: how stale its values were, and for whom it waited."""
    datagrams: DatagramsCounted | None = None
    fetched: BatchesFetched | None = None
    switched: list[PlanSwitched] = []
    """When the plan was switched while it trained."""
    stages: list[StageBegan] = []
    """When its script began stages."""
    entered: list[WorkerEntered] = []
    """When it came to a run that trained already, and what that took."""
    warnings: list[str] = []
    state: str = ""
    """done, failed, killed, running, unknown (on another host, no end recorded) or silent (no record)."""
    error: str = ""
    ended_at: int = 0
    """The step after which its script ended."""
    fingerprint: str = ""
    """Of its parameters then; empty if it was not wanted."""


def find_different(workers: Sequence[WorkerRecord]) -> str:
    """What is wrong if workers that ended after the same step hold different parameters; empty if they do not."""
    return name_different(_ends(workers))


def find_early(workers: Sequence[WorkerRecord]) -> str:
    """Which workers ended their loop before the others; empty if none did."""
    return name_early(_ends(workers))


def find_different_remote(workers: Sequence[WorkerRecord], remote: Mapping[int, tuple[int, str]]) -> str:
    """Which workers of other machines ended with other parameters than those of this one, whose word is not doubted."""
    ends = _ends(workers)
    known = {end for end in ends.values() if end[1]}
    steps = {step for step, _ in known}
    odd = [f"worker {worker}" for worker, end in sorted(remote.items()) if end[0] in steps and end not in known]
    if not odd:
        return ""
    hold = "holds" if len(odd) == 1 else "hold"
    return (
        f"at the end {', '.join(odd)}, of another machine, {hold} other parameters than the workers here: "
        "look at its log; the model that was kept is that of this machine"
    )


def _ends(workers: Sequence[WorkerRecord]) -> dict[int, tuple[int, str]]:
    return {worker.rank: (worker.ended_at, worker.fingerprint) for worker in workers}


def read_workers(record: RunRecord) -> list[WorkerRecord]:
    """Every worker of the run, by rank."""
    return [read_worker(record, rank) for rank in record.ranks]


def read_worker(record: RunRecord, rank: int) -> WorkerRecord:
    worker = tally(rank, record.events(rank))
    worker.state = find_state(worker, record.finished)
    return worker


def tally(rank: int, events: Iterable[AnyEvent]) -> WorkerRecord:
    """Add up one worker's events; `state` stays empty if no end was recorded."""
    sums = WorkerTally(rank)
    for event in events:
        sums.add(event)
    return sums.totals()


class WorkerTally:
    """Adds up one worker's events as they come."""

    def __init__(self, rank: int) -> None:
        self._sums = WorkerRecord(rank=rank)
        self._phases = dict.fromkeys(PHASES, 0.0)

    def add(self, event: AnyEvent) -> None:
        if isinstance(event, StepFinished):
            _add_step(self._sums, event)
            for phase in PHASES:
                self._phases[phase] += getattr(event, phase)
        else:
            _add_other(self._sums, event)

    def totals(self) -> WorkerRecord:
        """What it came to so far."""
        sums = self._sums
        means = {name: round(getattr(sums, name) / max(1, sums.steps), SECONDS) for name in _MEANS}
        return msgspec.structs.replace(
            sums,
            phases=mean_phases(self._phases, sums.steps),
            seconds=round(sums.seconds, SECONDS),
            samples_per_second=sums.samples / sums.seconds if sums.seconds else 0.0,
            **means,
        )


def mean_phases(totals: dict[str, float], steps: int) -> StepPhases:
    """Seconds per step from seconds in all."""
    return StepPhases(**{phase: round(total / max(1, steps), SECONDS) for phase, total in totals.items()})


def _add_step(worker: WorkerRecord, event: StepFinished) -> None:
    worker.steps += event.steps
    worker.samples += event.samples
    worker.seconds += event.seconds
    worker.forward += event.forward
    worker.transfer += event.transfer
    worker.exposed += event.exposed
    worker.bytes_raw += event.raw
    worker.bytes_sent += event.sent
    worker.bytes_wire += event.wire


def _add_other(worker: WorkerRecord, event: AnyEvent) -> None:
    match event:
        case WorkerStarted(host=host, pid=pid, threads=threads, device=device):
            worker.host, worker.pid, worker.threads, worker.device = host, pid, threads, device
            # Another process in its place: how the one before it ended is over.
            worker.state = worker.error = ""
        case LayerTimes(backward=backward, aggregation=aggregation, gradient=gradient):
            worker.backward_by_layer, worker.aggregation_by_layer = backward, aggregation
            worker.gradient_by_layer = gradient or worker.gradient_by_layer
        case BucketTimes():
            add_buckets(worker.exchanges, event)
        case CodecPriced():
            # The newest price of each codec.
            worker.prices = [*(price for price in worker.prices if price.codec != event.codec), event]
        case GuardChecked():
            # Of findings within the budget only the last stays; there is one after every so many steps.
            worker.guarded = [*(one for one in worker.guarded if one.action != "kept"), event]
        case ChoiceMade():
            worker.chosen.append(event)
        case SharesChanged():
            worker.shares.append(event)
        case ResultsReported(metrics=metrics):
            worker.metrics = metrics
        case TrafficCounted(peers=peers, links=links, stood_back=stood_back):
            # Where a count has no estimates of links, the last ones stay.
            worker.peers, worker.links, worker.stood_back = peers, links or worker.links, stood_back
        case RoundsMade() | ServerCounted() | DatagramsCounted() | BatchesFetched():
            _keep_totals(worker, event)
        case _:
            _add_word(worker, event)


def _keep_totals(worker: WorkerRecord, event: RoundsMade | ServerCounted | DatagramsCounted | BatchesFetched) -> None:
    """The newest totals of how replicas agreed, and of data servers."""
    match event:
        case RoundsMade():
            worker.rounds = event
        case ServerCounted():
            worker.servers = event
        case DatagramsCounted():
            worker.datagrams = event
        case BatchesFetched():
            worker.fetched = event


def _add_word(worker: WorkerRecord, event: AnyEvent) -> None:
    """What is told in a sentence, or once."""
    match event:
        case ModelsJoined(models=models, layers=layers, shapes=shapes):
            worker.models = [*worker.models, *models]
            worker.shapes = worker.shapes | shapes
            worker.layers = worker.layers | layers
        case WarningRaised(text=text):
            worker.warnings.append(text)
        case StepSkipped(step=step, workers=guilty):
            whose = ", ".join(f"worker {rank}" for rank in guilty) or "no single worker"
            worker.warnings.append(f"step {step} skipped: gradients of {whose} are not finite")
        case WorkerEntered():
            worker.entered.append(event)
        case PlanSwitched():
            worker.switched.append(event)
        case StageBegan():
            worker.stages.append(event)
        case WorkerEnded(exit=state, error=error, step=step, fingerprint=fingerprint):
            worker.state, worker.error = state, error
            worker.ended_at, worker.fingerprint = step, fingerprint


def find_state(worker: WorkerRecord, finished: bool) -> str:
    """How the worker stands, whether or not it recorded an end."""
    return worker.state or _without_end(worker, finished)


def _without_end(worker: WorkerRecord, finished: bool) -> str:
    if not worker.pid:
        return "silent"
    if not finished and worker.host != platform.node():
        return "unknown"  # its process cannot be asked from here
    return "running" if not finished and _alive(worker.pid) else "killed"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    # It lives, and is another user's.
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True
