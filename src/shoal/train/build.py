"""From a plan's description to the running thing."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore, Store  # torch.distributed has them, unseen by mypy
from torch.optim import Optimizer

from shoal.core.errors import UsageError
from shoal.groups.base import WorkerGroup
from shoal.groups.links import LinkedGroup
from shoal.groups.process_group import gloo
from shoal.groups.shared_memory import SharedGroup
from shoal.plan.compose import compose
from shoal.plan.plan import Plan
from shoal.plan.terms import AloneTerm
from shoal.plan.wrappers import GuardTerm
from shoal.sync.aggregate.base import PayloadAggregator, StatefulAggregator
from shoal.sync.aggregate.cast import CastAggregator
from shoal.sync.aggregate.choose import choose
from shoal.sync.aggregate.elastic import ElasticAggregator
from shoal.sync.aggregate.gather import GatherAggregator
from shoal.sync.aggregate.largest import LargestAggregator
from shoal.sync.aggregate.low_rank import LowRankAggregator
from shoal.sync.aggregate.two_stage import TwoStageAggregator
from shoal.sync.engine.base import ExchangeEngine
from shoal.sync.engine.collective import CollectiveEngine
from shoal.sync.engine.hierarchical import HierarchicalEngine
from shoal.sync.engine.leader import LeaderEngine
from shoal.sync.engine.links import LinkEngine
from shoal.sync.engine.shared_memory import SharedMemoryEngine
from shoal.sync.exchange.allreduce import AllReduceExchange
from shoal.sync.exchange.auto import AutoCodecExchange, CodecCandidate
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.exchange.compressed import CompressedExchange, takes
from shoal.sync.exchange.none import NoExchange
from shoal.sync.guard import ConvergenceGuard
from shoal.sync.news import CodecSwitched
from shoal.sync.pace.base import SyncPace
from shoal.sync.pace.every import EveryPace
from shoal.sync.pace.needed import NeededPace
from shoal.sync.pace.ordering import OrderingPace
from shoal.sync.statistics import RunningStatistics
from shoal.train.codec_candidates import codecs_to_try, price_of
from shoal.train.members import JoinedMembers
from shoal.wire.bucket import BucketPlan, GradientBucket
from shoal.wire.codec import GradientCodec
from shoal.wire.codecs.cast import CastCodec
from shoal.wire.codecs.lowrank import LowRankCodec
from shoal.wire.layout import FlatLayout

ENGINE_VARIABLE = "SHOAL_ENGINE"
ENGINES = ("auto", "memory", "collective")
OVERLAPPING: dict[str, type[EveryPace]] = {"needed": NeededPace, "auto": OrderingPace}
"""Orders under which steps overlap, where they can."""


def build_exchange(
    plan: Plan, group: WorkerGroup, engines: "EngineChooser", seed: int = 0, optimizers: Sequence[Optimizer] = ()
) -> GradientExchange:
    """HOW, and WHAT travels: nothing at all for a world of one, whatever the plan says.

    `optimizers`: what the mean is for, where the run chooses a codec itself.
    """
    if (group.size == 1 and not group.session.elastic) or isinstance(plan.exchange, AloneTerm):
        return NoExchange()
    exchange = AllReduceExchange(group, engines.of)
    if plan.order.by == "largest":
        return CompressedExchange(
            exchange,
            lambda layouts: LargestAggregator(plan.order.limit, engines.of("cpu"), group.rank, seed),
            str(plan.order),
        )
    if plan.chooses_codec:
        return _automatic(exchange, group, engines, seed, optimizers)
    codec = compose(plan.codecs, group.size)
    if codec is None:
        return exchange
    # What meets in two stages would wait for the second.
    how = "gather" if plan.order.by in OVERLAPPING else plan.meeting
    guard = plan.guard
    return CompressedExchange(
        exchange,
        lambda layouts: build_meeting(codec, layouts, group, engines, seed, how, guarded=guard is not None),
        ", ".join(str(term) for term in plan.codecs),
        _guard(guard, engines.of("cpu"), codec, group) if guard is not None else None,
    )


def _guard(term: GuardTerm, engine: ExchangeEngine, codec: GradientCodec, group: WorkerGroup) -> ConvergenceGuard:
    return ConvergenceGuard(term.budget, term.every, engine, codec.get_ratio(), lambda: group.session.view.epoch)


def _automatic(
    exchange: GradientExchange, group: WorkerGroup, engines: "EngineChooser", seed: int, optimizers: Sequence[Optimizer]
) -> GradientExchange:
    """`wire(auto)`: where nothing crosses a socket there is nothing to choose."""
    engine, spare = engines.of("cpu"), engines.of("cpu")  # made now, by all in the same order, whatever is chosen when
    if isinstance(engine, SharedMemoryEngine):
        exchange.tell(CodecSwitched("", "inside one host nothing crosses a socket"))
        return exchange

    def candidates(plans: Sequence[BucketPlan]) -> list[CodecCandidate]:
        layouts = [plan.layout for plan in plans if takes(plan)]
        return [_candidate(name, codec, layouts) for name, codec in codecs_to_try(optimizers, group.size).items()]

    def _candidate(name: str, codec: GradientCodec, layouts: Sequence[FlatLayout]) -> CodecCandidate:
        def take(buckets: Sequence[GradientBucket]) -> GradientExchange:
            coded = CompressedExchange(
                exchange, lambda found: build_meeting(codec, found, group, engines, seed, engine=spare), name
            )
            coded.adopt(buckets)
            return coded

        return CodecCandidate(price_of(name, codec, layouts, group.size), take)

    return AutoCodecExchange(exchange, engine, lambda: group.size, candidates)


def build_meeting(
    codec: GradientCodec,
    layouts: Sequence[FlatLayout],
    group: WorkerGroup,
    engines: "EngineChooser",
    seed: int,
    how: str = "auto",
    guarded: bool = False,
    engine: ExchangeEngine | None = None,
) -> PayloadAggregator:
    """How payloads meet: summed if a codec's add up, else gathered, or in two stages where that saves bytes.

    `guarded`: a sparsifier may come to send everything. Codecs work on the host, whatever the device. In one host's
    memory no byte is saved, so payloads are gathered there. Where members may change, so may the way, with the number
    of workers.
    """
    engine = engine or engines.of("cpu")
    if codec.summed_as == "factors":
        inner = cast(LowRankCodec, codec.without_feedback())
        return LowRankAggregator(inner, engine, engines.of("cpu"), feedback=inner is not codec)
    if codec.summed_as == "cast":
        meeting = CastAggregator(cast(CastCodec, codec), engine, group.size)
        group.session.entered.append(lambda view: meeting.entered(len(view), newcomers=bool(group.session.fresh)))
        return meeting
    if how == "auto" and isinstance(engine, SharedMemoryEngine):
        how = "gather"
    widest = codec.with_ratio(1.0) if guarded and codec.get_ratio() is not None else None
    most = group.seats if isinstance(group, SharedGroup) else 0

    def make(rank: int, size: int) -> StatefulAggregator:
        if (how == "auto" and choose(codec, layouts, size) == "twostage") or how == "twostage":
            return TwoStageAggregator(codec, engine, rank, size, seed, most)
        return GatherAggregator(codec, engine, rank, seed, widest)

    if group.session.elastic and how != "gather" and codec.divisible:
        # a newcomer learns its place when it is let in
        return ElasticAggregator(engine, make, lambda: (0, 1) if group.session.waiting else (group.rank, group.size))
    return make(group.rank, group.size)


def build_pace(
    plan: Plan,
    exchange: GradientExchange,
    engines: "EngineChooser",
    members: JoinedMembers,
    statistics: RunningStatistics,
) -> SyncPace:
    """WHEN; and what leaves first, where an engine works in the background and members stay."""
    background = exchange.peers and all(engines.background(p.device.type) for p in members.parameters)
    overlapping = OVERLAPPING.get(plan.order.by)
    kind = overlapping if overlapping and background and not exchange.session.elastic else EveryPace
    return kind(exchange, members.names, members.parameters, members.sparse, statistics)


class EngineChooser:
    """Chooses an engine by where a bucket lies: memory inside one host, links between hosts, NCCL for CUDA.

    gloo where the user trusts the network between the hosts.

    One per run: what is joined later shares its process groups.
    """

    def __init__(self, group: WorkerGroup, directory: Path, by: str = "auto") -> None:
        """`by`: how sums are made over links, in the words of `allreduce(…)`."""
        self.group, self.directory, self.by = group, directory, by
        self._process_groups: dict[str, dist.ProcessGroup] = {}
        self.wanted = os.environ.get(ENGINE_VARIABLE, "auto")
        if self.wanted not in ENGINES:
            raise UsageError(f"{ENGINE_VARIABLE}={self.wanted!r} is not an engine; use one of {', '.join(ENGINES)}")

    def of(self, device: str) -> ExchangeEngine:
        if device == "cpu" and self.wanted != "collective" and isinstance(self.group, SharedGroup):
            return SharedMemoryEngine(self.group)
        if device == "cpu" and self.wanted == "auto" and isinstance(self.group, LinkedGroup):
            if self.group.local is None:
                return LinkEngine(self.group, by=self.by)
            kind = HierarchicalEngine if len(self.group.local.places) > 1 else LeaderEngine
            return kind(self.group, self.by)
        if self.wanted == "memory":
            raise UsageError(f"{ENGINE_VARIABLE}=memory needs workers of one host and tensors on the CPU, not {device}")
        if device not in self._process_groups:
            self._process_groups[device] = self._meet(device)
        return CollectiveEngine(self._process_groups[device])

    def background(self, device: str) -> bool:
        """Whether exchanges go on while the training thread computes, and need nothing more of it."""
        return device == "cpu" and self.wanted == "auto" and isinstance(self.group, LinkedGroup)

    def _meet(self, device: str) -> dist.ProcessGroup:
        group = self.group
        met = getattr(group, "store", None)
        if isinstance(group, SharedGroup):  # one host: nothing needs to be heard outside
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        store: Store
        if met is not None:
            store = PrefixStore(f"engine/{device}", met)
        else:  # forked by `shoal run`: a file in the run's own folder, which the launcher removes
            store = FileStore(str(self.directory / f"rendezvous-{device}"), group.size)
        if device == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            return cast(dist.ProcessGroup, dist.ProcessGroupNCCL(store, group.rank, group.size, options))
        return gloo(store, group.rank, group.size, group.seconds)


def default_device(rank: int) -> torch.device:
    """The device of a worker: one of the host's CUDA devices in turn, or the CPU."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)) % count) if count else torch.device("cpu")
