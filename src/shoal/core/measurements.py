"""Events that measure training: times, bytes and values of steps, layers, buckets and rounds.

They make up nearly all of a record, so most of their fields merge when it is compacted (core/merging.py).
"""

import msgspec

from shoal.core.event_sink import RunEvent

LATENCY_VARIABLE = "SHOAL_LATENCY"
"""A benchmark sets it to get the event `answered`."""
SECONDS = 6
"""Digits kept of a duration in seconds: microseconds."""


class StepFinished(RunEvent, tag="step", frozen=True, kw_only=True):
    """One optimizer step of one worker; the phases add up to `seconds`. Merged ones hold the sums of several."""

    step: int
    """The first, if there are several."""
    steps: int = 1
    """So many, one after the other."""
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
    """The part of `forward_backward` until the joined model returned."""
    backward: float = 0.0
    """The rest of `forward_backward`."""
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
    """The part of `transfer` in which this worker waited; the rest was hidden behind computation."""


class LayerTimes(RunEvent, tag="layers", frozen=True, kw_only=True):
    """Mean seconds per step by layer (a module that owns parameters), over the steps measured so far."""

    step: int
    samples: int
    """Steps that were measured; means of 0 are of nothing."""
    backward: dict[str, float]
    """From the gradient before to this layer's own, without exchange and packing."""
    aggregation: dict[str, float]
    """From its bucket being full to the mean being back; a bucket's time is shared out by bytes."""
    gradient: dict[str, float] = {}
    """Norm of this worker's own gradient in one of those steps, estimated from some of its elements."""


class BucketFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One bucket, mean per measured step. Times are seconds of this worker."""

    layers: list[str]
    """Names of the parameters whose gradients lie in it."""
    raw: float
    """float32 bytes of them."""
    sent: float
    """Bytes of the payload that stands for them."""
    wire: float
    """Bytes put on sockets for it."""
    encode: float
    """From being full to having left."""
    transfer: float
    """From having left to all of it being here; told between layers, so up to one layer's backward pass too long."""
    wait: float
    """The part of `transfer` in which this worker did nothing else. Without a codec this includes summing."""
    decode: float
    """From all of it being here to the sum being in its place."""
    gradient: float = 0.0
    """Norm of what this worker offered, estimated from some of its elements."""
    residual: float = 0.0
    """Norm of what waits for later steps, estimated alike; 0 where nothing does."""

    @property
    def hidden(self) -> float:
        """The share of the transfer in which this worker computed."""
        return 1.0 - min(1.0, self.wait / self.transfer) if self.transfer > 0 else 1.0


class BucketTimes(RunEvent, tag="buckets", frozen=True, kw_only=True):
    """The time each bucket's exchange took, over the steps measured since the last such event."""

    step: int
    measured: int
    """Steps the means are of."""
    join: int = 0
    """Which `join` of the script these are of."""
    codec: str
    """The wire terms of the plan, as text; empty: values as they are."""
    meets: str
    """How payloads of workers come together: sum, gather or twostage."""
    buckets: list[BucketFigures]
    span: float
    """Seconds a step in which anything was under way: transfers of buckets overlap."""
    room: float
    """Seconds a step from the first bucket's leaving to the last one's being full: what a transfer can hide behind."""
    step_seconds: float
    """Of the measured steps."""
    rate: float | None = None
    """Bytes a second of this worker's fastest link, where links estimate it."""
    rtt: float | None = None
    """Seconds of its slowest link's round trip."""


class CodecPriced(RunEvent, tag="priced", frozen=True, kw_only=True):
    """The cost of another codec per step of this run: measured once, on this machine, with random numbers."""

    codec: str
    encode: float
    """Seconds a step."""
    decode: float
    wire: float
    """Bytes a worker would put on sockets a step."""
    hops: int
    """One-way latencies on the way of a bucket."""


class GuardChecked(RunEvent, tag="guarded", frozen=True, kw_only=True):
    """The guard compared the applied gradient with the one that no codec had changed."""

    step: int
    cosine: float
    """Between the two, summed over `steps`."""
    budget: float
    steps: int
    action: str
    """kept (within the budget), tightened (a sparsifier sends more now), or outside (nothing can be tightened)."""
    ratio: float | None = None
    """The fraction of elements that a sparsifier sends from now on."""


class ChoiceMade(RunEvent, tag="chosen", frozen=True, kw_only=True):
    """`wire(auto)` has chosen what gradients travel as, `order(auto)` what leaves first, or `local(auto)` how many
    steps a round has, from the next step on; or the launcher of a plan with `server(auto)`, how many servers there are.
    """

    step: int
    codec: str
    """Empty: values as they are. Of `order(auto)`: the order. Of `local(auto)`: the rounds, as `local(24)`. Of
    `server(auto)`: the plan."""
    reason: str
    steps: dict[str, float]
    """Codec -> seconds a step: measured without one (empty name), by the model with the others. Orders are measured.
    Of `server(auto)`: number of servers -> samples/s, measured."""


class ValuesLogged(RunEvent, tag="logged", frozen=True, kw_only=True):
    """`run.log(...)`: values of one worker at one step. Merged ones hold the means of several."""

    step: int
    """The first, if there are several."""
    steps: int = 1
    """Means of so many calls."""
    values: dict[str, float]


class ResultsReported(RunEvent, tag="reported", frozen=True, kw_only=True):
    """`run.report(...)`: results, usually once an epoch."""

    step: int
    epoch: int
    metrics: dict[str, float]


class TrafficCounted(RunEvent, tag="traffic", frozen=True, kw_only=True):
    """Bytes sent to each peer since the run began: rank as text -> (payload bytes, bytes on sockets)."""

    step: int
    peers: dict[str, tuple[int, int]]
    links: dict[str, tuple[float | None, float | None]] = {}
    """Peer's rank as text -> (bytes a second, seconds of a round trip), as the link estimates them; None: not known."""
    stood_back: dict[str, float] = {}
    """Another run of this host -> seconds in which this worker let it go first on the link."""


class RoundsMade(RunEvent, tag="rounds", frozen=True, kw_only=True):
    """Under `local(…)`: what the rounds of this worker came to so far; the newest counts."""

    step: int
    rounds: int
    steps: int
    """Optimizer steps in them."""
    seconds: float
    """From the end of its own steps until it had the new parameters, all rounds together."""
    sent: int
    """Bytes of payloads."""
    wire: int
    """Bytes put on sockets."""
    dropped: int = 0
    """Rounds in which its parameters were not finite, so that they did not count."""


class ServerCounted(RunEvent, tag="servers", frozen=True, kw_only=True):
    """Under paces of servers: what this worker did with its servers so far; the newest counts."""

    step: int
    pushes: int
    refused: int
    """Pushes that were not finite, and changed nothing."""
    pulls: int
    up: int
    """Bytes of arrays sent to the servers."""
    down: int
    """Bytes of arrays that came from them."""
    staleness: dict[str, int]
    """Clocks that the slowest worker was behind, as text -> steps that began with such values."""
    waited: dict[str, int]
    """Member -> milliseconds that this worker's pulls have waited for it."""
    plain_up: int = 0
    """Bytes that pushes would have been without a codec."""
    plain_down: int = 0
    """The same of pulls."""
    late: int = 0
    """Under `deadline(…)`: pushes whose step had been taken without them."""
    unused: int = 0
    """Samples of those that came to nothing; they were leased again."""
    restarts: int = 0
    """Under `async(speculate=…)`: forward passes that were made again on fresher values."""
    gained: int = 0
    """Updates of others that these values had more."""


class BatchesFetched(RunEvent, tag="fetched", frozen=True, kw_only=True):
    """With `--data-servers`: where this worker's batches were prepared so far; the newest counts."""

    step: int
    batches: list[int]
    """From each data server."""
    bytes: int
    """Of these batches."""
    local: int
    """Batches that the worker prepared itself."""
    waited: float
    """Seconds in which its training waited for a batch, or prepared one."""
    overdue: int = 0
    """How often a server that was asked did not answer in time."""
    lost: int = 0
    """How often the connection to one ended."""


class DatagramsCounted(RunEvent, tag="datagrams", frozen=True, kw_only=True):
    """Under `datagrams`: what became of this worker's datagrams, and of those that were for it; the newest counts."""

    step: int
    sent: int
    sent_bytes: int
    """With the headers of IP and UDP."""
    unsent: int
    """That the system did not take."""
    received: int
    lost: int
    """That have not come, though later ones of their sender have."""
    late: int
    """That a newer one has overtaken, or that came twice."""
    refused: int
    """That no member has made as they came."""


class InferenceTimed(RunEvent, tag="answered", frozen=True, kw_only=True):
    """How long the trained model took for one sample, where a benchmark asked for it."""

    seconds: float = 0.0
    """Median."""
    p99: float = 0.0
    """The 99th percentile over passes."""
    passes: int = 0
    why: str = ""
    """Why it was not measured; empty if it was."""
