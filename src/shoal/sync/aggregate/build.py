"""Which aggregator suits a codec, a group and its engines."""

from collections.abc import Sequence
from typing import cast

from shoal.groups.base import WorkerGroup
from shoal.groups.shared_memory import SharedGroup
from shoal.membership.listener import ListenerStage
from shoal.sync.aggregate.base import PayloadAggregator, StatefulAggregator
from shoal.sync.aggregate.cast import CastAggregator
from shoal.sync.aggregate.choose import choose
from shoal.sync.aggregate.elastic import ElasticAggregator
from shoal.sync.aggregate.gather import GatherAggregator
from shoal.sync.aggregate.low_rank import LowRankAggregator
from shoal.sync.aggregate.two_stage import TwoStageAggregator
from shoal.sync.engine.chooser import EngineSource
from shoal.sync.engine.shared_memory_payloads import SharedMemoryPayloads
from shoal.wire.codec import GradientCodec
from shoal.wire.codecs.cast import CastCodec
from shoal.wire.codecs.lowrank import LowRankCodec
from shoal.wire.layout import FlatLayout


def build_aggregator(
    codec: GradientCodec,
    layouts: Sequence[FlatLayout],
    group: WorkerGroup,
    engines: EngineSource,
    seed: int,
    how: str = "auto",
    guarded: bool = False,
) -> PayloadAggregator:
    """How payloads are combined: summed if a codec's add up, else gathered, or in two stages where that saves bytes.

    `guarded`: a sparsifier may come to send everything. Codecs work on the host, whatever the device. In one host's
    memory no byte is saved, so payloads are gathered there. Where members may change, so may the way, with the number
    of workers.
    """
    if codec.summed_as == "factors":
        inner = cast(LowRankCodec, codec.without_feedback())
        return LowRankAggregator(inner, engines.of("cpu"), engines.of("cpu"), feedback=inner is not codec)
    if codec.summed_as == "cast":
        casting = CastAggregator(cast(CastCodec, codec), engines.of("cpu"), group.size)
        # where it clamps values depends on the number of workers
        group.session.listeners.add(casting, ListenerStage.exchange)
        return casting
    engine = engines.payloads()
    if how == "auto" and isinstance(engine, SharedMemoryPayloads):
        how = "gather"
    widest = codec.with_ratio(1.0) if guarded and codec.get_ratio() is not None else None
    most = group.slots if isinstance(group, SharedGroup) else 0

    def make(rank: int, size: int) -> StatefulAggregator:
        if (how == "auto" and choose(codec, layouts, size) == "twostage") or how == "twostage":
            return TwoStageAggregator(codec, engine, rank, size, seed, most)
        return GatherAggregator(codec, engine, rank, seed, widest)

    if group.session.elastic and how != "gather" and codec.divisible:
        # a newcomer learns its place when it is let in
        return ElasticAggregator(engine, make, lambda: (0, 1) if group.session.waiting else (group.rank, group.size))
    # members stay, or payloads are gathered, which does not depend on their number
    return make(group.rank, group.size)
