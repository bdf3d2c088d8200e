"""`wire(auto)`: the exchange that measures some steps and then chooses a codec, with its candidates."""

from collections.abc import Mapping, Sequence

from torch.optim import Optimizer

from shoal.groups.base import WorkerGroup
from shoal.sync.aggregate.build import build_aggregator
from shoal.sync.engine.chooser import EngineChooser, ReservedEngines
from shoal.sync.engine.shared_memory import SharedMemoryEngine
from shoal.sync.exchange.auto import AutoCodecExchange, CodecCandidate
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.exchange.compressed import CompressedExchange, is_coded
from shoal.sync.observer import CodecSwitched
from shoal.train.codec_candidates import codecs_to_try, price_of
from shoal.wire.bucket import BucketPlan, GradientBucket
from shoal.wire.codec import GradientCodec
from shoal.wire.layout import FlatLayout


def build_auto_exchange(
    exchange: GradientExchange, group: WorkerGroup, engines: EngineChooser, seed: int, optimizers: Sequence[Optimizer]
) -> GradientExchange:
    """The exchange itself, where nothing crosses a socket: there is nothing to choose."""
    # made now, by all in the same order, whatever is chosen when
    engine, reserved = engines.of("cpu"), ReservedEngines(engines)
    if isinstance(engine, SharedMemoryEngine):
        exchange.observer.report(CodecSwitched("", "inside one host nothing crosses a socket"))
        return exchange

    def candidates(plans: Sequence[BucketPlan]) -> list[CodecCandidate]:
        layouts = [plan.layout for plan in plans if is_coded(plan)]
        return [_candidate(name, codec, layouts) for name, codec in codecs_to_try(optimizers, group.size).items()]

    def _candidate(name: str, codec: GradientCodec, layouts: Sequence[FlatLayout]) -> CodecCandidate:
        def build(buckets: Mapping[int, GradientBucket]) -> GradientExchange:
            coded = CompressedExchange(
                exchange, lambda found: build_aggregator(codec, found, group, reserved, seed), name
            )
            coded.adopt(buckets)
            return coded

        return CodecCandidate(price_of(name, codec, layouts, group.size), build)

    return AutoCodecExchange(exchange, engine, lambda: group.size, candidates)
