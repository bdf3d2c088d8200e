"""Compute how payloads meet under a plan, and how many bytes a worker sends for one step between hosts."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from shoal.core.errors import UsageError
from shoal.groups.cluster_file import ClusterMeasurement
from shoal.plan.factors import FactorsTerm
from shoal.plan.local import LocalTerm
from shoal.plan.plan import Plan
from shoal.plan.server_time import transfer_seconds
from shoal.plan.terms import AllReduceTerm, AloneTerm, DatagramsTerm, EveryTerm, MixTerm, Pace, ServerTerm, SharedTerm
from shoal.sync.price import NetworkEstimate, summed
from shoal.sync.settings import SynchronizerSettings
from shoal.sync.sum_cost import HALF, sum_cost

if TYPE_CHECKING:
    from shoal.wire.codec import GradientCodec
    from shoal.wire.layout import FlatLayout

    Buckets = Sequence[tuple[int, FlatLayout]]

MOST_WORKERS, MOST_PARAMETERS = 1 << 16, 1 << 40
PARAMETERS = 1_000_000
SIDE = 1 << 10
"""Rows of a square matrix that fills a bucket of four megabytes."""


class StepTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker sends in one step, between hosts; inside one host nothing crosses a socket."""

    workers: int
    parameters: int
    """Elements; taken as square matrices if shapes are not known."""
    meets: str
    """sum, gather, twostage, server, pairs, datagrams, or nothing."""
    sent: int
    """Bytes a worker sends, at most."""
    plain: int
    """Bytes without a codec."""
    gathered: int | None = None
    """Bytes if payloads were gathered; None if the codec cannot."""
    staged: int | None = None
    """Bytes if payloads were combined in two stages; None if the codec cannot."""
    rate_mbit: float | None = None
    """Of the slowest link, where a cluster was measured."""
    rtt_ms: float | None = None
    """The longest round trip there."""
    seconds: float | None = None
    """Seconds of the transfer at that rate, by the model of sync/price.py, without encoding."""
    plain_seconds: float | None = None
    """The same without a codec."""
    step_seconds: float | None = None
    """Seconds of a step that hides no transfer behind computing; None if the computing is not known."""
    depth: int = 0
    """Messages of which each waits for the one before, for one bucket."""
    added: int | None = None
    """Numbers that the worker with most work adds up; None where servers add, or a codec's factors are summed."""
    steps: int = 1
    """Optimizer steps from one exchange to the next; under `local(…)` all bytes and seconds are those of a round."""

    def __str__(self) -> str:
        how = {
            "sum": "payloads are summed",
            "gather": "everybody gets everybody's payload",
            "twostage": "payloads meet in two stages",
            "server": "servers add up payloads",
            "pairs": "a worker sends its parameters to one partner",
            "datagrams": "a worker sends its changes to all others as often as its rate allows, here once",
            "nothing": "nothing travels",
        }[self.meets]
        text = (
            f"between {self.workers} hosts, {self.parameters:,} parameters: {how}; "
            f"a worker sends at most {self.sent:,} bytes a {self._unit}"
        )
        text += f" of {self.steps} steps, {math.ceil(self.sent / self.steps):,} a step" if self.steps > 1 else ""
        other = {"gather": ("two stages", self.staged), "twostage": ("gathering", self.gathered)}.get(self.meets)
        rest = [f"{other[0]} would be {other[1]:,}"] if other is not None and other[1] is not None else []
        rest += [f"no codec {self.plain:,}"] if self.sent != self.plain and self.meets != "nothing" else []
        return (f"{text} ({', '.join(rest)})" if rest else text) + self._work() + self._times()

    @property
    def _unit(self) -> str:
        return "round" if self.steps > 1 else "step"

    def _work(self) -> str:
        """Work and depth, as analyses of parallel programs count them."""
        if not self.depth:
            return ""
        row = f"{self.depth} messages wait for one another" if self.depth > 1 else "no message waits for another"
        return f"; {row}" + (f", and a worker adds at most {self.added:,} numbers" if self.added is not None else "")

    def _times(self) -> str:
        if self.seconds is None or self.plain_seconds is None:
            return ""
        other = f", without a codec {1e3 * self.plain_seconds:,.1f} ms" if self.sent != self.plain else ""
        slowest = f"{self.rate_mbit:g} Mbit/s with a round trip of {self.rtt_ms:g} ms"
        text = f"; over its slowest link, {slowest}, that takes about {1e3 * self.seconds:,.1f} ms{other}"
        if self.step_seconds is None:
            return text
        computing = 1e3 * (self.step_seconds - self.seconds)
        return f"{text}; a step about {1e3 * self.step_seconds:,.1f} ms, {computing:,.1f} of them computing"


def traffic(plan: Plan, workers: int, parameters: int = PARAMETERS) -> StepTraffic:
    """Return what a worker sends for one step of a model of square matrices, by the arithmetic of each way to meet."""
    for name, value, most in (("workers", workers, MOST_WORKERS), ("parameters", parameters, MOST_PARAMETERS)):
        if not 1 <= value <= most:
            raise UsageError(f"--{name} {value}: {name} must be a whole number from 1 to {most}")
    pace = plan.pace
    steps = pace.steps_per_round if isinstance(pace, SynchronizerSettings) else _steps(pace)
    if isinstance(pace, LocalTerm) and pace.fragments > 1:  # an exchange is that of one fragment
        steps, parameters = steps // pace.fragments, -(-parameters // pace.fragments)
    plain = sum_cost("auto", parameters, workers).sent
    facts = {"workers": workers, "parameters": parameters, "plain": plain, "steps": steps}
    # With local(…) each host has a copy, and those are exchanged.
    one_copy = isinstance(plan.exchange, SharedTerm) and not isinstance(plan.pace, LocalTerm)
    if isinstance(plan.exchange, AloneTerm) or one_copy or workers == 1:
        return StepTraffic(meets="nothing", sent=0, **facts)
    if isinstance(plan.exchange, ServerTerm) and not plan.codecs:  # up; the same comes down
        return StepTraffic(meets="server", sent=4 * parameters, depth=2, **facts)
    if isinstance(plan.exchange, MixTerm):
        return StepTraffic(meets="pairs", sent=4 * parameters, depth=1, added=parameters, **facts)
    if isinstance(plan.exchange, DatagramsTerm):
        sent, added = 4 * parameters * (workers - 1), parameters * (workers - 1)
        return StepTraffic(meets="datagrams", sent=sent, depth=1, added=added, **facts)
    if plan.factors is not None:
        raise UsageError(f"--workers with '{plan.factors}': layers differ in shape, so give the model too: --model RUN")
    if not plan.wire:
        return _plainly(plan, workers, parameters, facts)
    return _coded(plan, workers, _square_buckets(parameters), facts)


def shape_traffic(plan: Plan, workers: int, shapes: Mapping[str, Sequence[int]]) -> StepTraffic:
    """Return what a worker sends for one step of parameters with these names and shapes, as float32, in buckets."""
    parameters = sum(math.prod(shape) for shape in shapes.values())
    if plan.factors is not None and workers > 1:
        return _factored(plan.factors, workers, shapes)
    # `traffic` asks for 1 or more; a part without parameters is set to 0 below.
    found = traffic(plan, workers, max(1, parameters)) if not plan.wire or not parameters else None
    if found is not None:
        return found if parameters else msgspec.structs.replace(found, parameters=0, sent=0, plain=0)
    import torch

    from shoal.wire.bucket import lay_out

    # On the meta device, because only the shapes are needed and a model may be larger than the memory.
    tensors = [torch.empty(tuple(shape), device="meta") for shape in shapes.values()]
    buckets = [(1, bucket.layout) for bucket in lay_out(tensors, names=list(shapes))]
    facts = {"workers": workers, "parameters": parameters, "plain": sum_cost("auto", parameters, workers).sent}
    if workers == 1:
        return StepTraffic(meets="nothing", sent=0, **facts)
    return _coded(plan, workers, buckets, facts)


def _factored(term: FactorsTerm, workers: int, shapes: Mapping[str, Sequence[int]]) -> StepTraffic:
    """Matrices as if they were weights of linear layers."""
    parameters = sum(math.prod(shape) for shape in shapes.values())
    worth = [shape for shape in shapes.values() if term.is_worth_it(shape)]
    summing = parameters - sum(math.prod(shape) for shape in worth)
    sent = sum(term.factor_bytes(shape, workers) for shape in worth) + int(summed(4 * summing, workers))
    plain = int(summed(4 * parameters, workers))
    meets = "gather" if worth else "sum"
    # the factors of a layer leave as it is ready; what is summed takes the latencies of a sum
    depth = sum_cost("auto", summing, workers).depth or 1
    return StepTraffic(workers=workers, parameters=parameters, meets=meets, sent=sent, plain=plain, depth=depth)


def _plainly(plan: Plan, workers: int, parameters: int, facts: dict[str, int]) -> StepTraffic:
    cost = sum_cost(_algorithm(plan), parameters, workers)
    return StepTraffic(meets="sum", sent=cost.sent, depth=cost.depth, added=cost.added, **facts)


def _algorithm(plan: Plan) -> str:
    return plan.exchange.algorithm if isinstance(plan.exchange, AllReduceTerm) else "auto"


def _steps(pace: Pace) -> int:
    return pace.first_steps if isinstance(pace, LocalTerm) else pace.steps


def over(cluster: ClusterMeasurement, found: StepTraffic, plan: Plan, computing: float | None = None) -> StepTraffic:
    """Add how long the transfer takes on a measured cluster: as on its slowest link, because all wait for it.

    `computing`: seconds of a batch, for the time of a step of a plan that exchanges in every step.
    """
    if not cluster.links or found.meets == "nothing":
        return found
    # The worst of each, even if they are of different links: every worker waits for both.
    rate, rtt = min(link.rate_mbit for link in cluster.links), max(link.rtt_ms for link in cluster.links)
    network = NetworkEstimate(rate * 1e6 / 8, rtt / 1e3)
    if isinstance(plan.exchange, ServerTerm):
        where = (found.workers, plan.exchange.servers, len(cluster.workers))
        # Servers share the lines of all hosts, so their number counts, not the depth of a sum.
        seconds, plain = (transfer_seconds(size, *where, network) for size in (found.sent, 4 * found.parameters))
    else:
        seconds = network.seconds(found.sent, found.depth)
        plain = network.seconds(found.plain, sum_cost("auto", found.parameters, found.workers).depth)
    # In rounds one exchange serves several steps, so computing and transfer do not add up to one step.
    in_every_step = isinstance(plan.pace, EveryTerm)
    return msgspec.structs.replace(
        found,
        rate_mbit=rate,
        rtt_ms=rtt,
        seconds=seconds,
        plain_seconds=plain,
        step_seconds=computing + seconds if computing is not None and in_every_step else None,
    )


def _square_buckets(parameters: int) -> "Buckets":
    from shoal.wire.layout import FlatLayout

    # Squares, because a codec's bytes depend on shapes and none are known.
    whole, rest = divmod(parameters, SIDE * SIDE)
    side = math.isqrt(rest)
    left = FlatLayout.of([("square", (side, side)), ("rest", (1, rest - side * side))])
    return [(whole, FlatLayout.of([("square", (SIDE, SIDE))])), (1 if rest else 0, left)]


def _coded(plan: Plan, workers: int, buckets: "Buckets", facts: dict[str, int]) -> StepTraffic:
    # Imported here, because codecs bring torch along, which a plan without them does not need.
    from shoal.plan.compose import compose
    from shoal.sync.aggregate.choose import gathered, staged, way

    codec = compose(plan.codecs, workers)
    parameters = facts["parameters"]
    if codec is None:
        return _plainly(plan, workers, parameters, facts)
    if isinstance(plan.exchange, ServerTerm):  # up: a push; what comes down depends on what others change
        pushed = sum(times * codec.max_bytes(part) for times, part in buckets)
        return StepTraffic(meets="server", sent=pushed, depth=2, **facts)
    if codec.summable:
        return _summed(plan, codec, workers, buckets, facts)
    one = sum(times * gathered(codec, [layout], workers) for times, layout in buckets)
    two = sum(times * staged(codec, [layout], workers) for times, layout in buckets) if codec.divisible else None
    meets = plan.meeting if plan.meeting != "auto" else way(one, two, workers)
    if meets == "twostage" and two is not None:
        # In two stages each worker adds up its share of every other's payload.
        added = (workers - 1) * parameters // workers
        return StepTraffic(meets=meets, sent=two, gathered=one, staged=two, depth=2, added=added, **facts)
    added = (workers - 1) * parameters
    return StepTraffic(meets=meets, sent=one, gathered=one, staged=two, depth=1, added=added, **facts)


def _summed(plan: Plan, codec: "GradientCodec", workers: int, buckets: "Buckets", facts: dict[str, int]) -> StepTraffic:
    """Casts are summed as they are; factors one after the other, as float32."""
    if codec.summed_as == "cast":
        cost = sum_cost(_algorithm(plan), facts["parameters"], workers, HALF)
        return StepTraffic(meets="sum", sent=cost.sent, depth=cost.depth, added=cost.added, **facts)
    sizes = [codec.summed_bytes(layout) or 0 for times, layout in buckets if times]
    sent = int(summed(sum(times * (codec.summed_bytes(layout) or 0) for times, layout in buckets), workers))
    # Two rounds, of which the second waits for the first.
    depth = 2 * sum_cost(_algorithm(plan), max(sizes, default=0) // 8, workers).depth
    return StepTraffic(meets="sum", sent=sent, depth=depth, **facts)
