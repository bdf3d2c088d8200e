"""From `local(…)` to the rounds of local steps that run it: how long they are, and what follows from their mean."""

from shoal.plan.local import LocalTerm
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.local.adaptive import AdaptiveRoundsSynchronizer
from shoal.sync.local.average import AverageOuter
from shoal.sync.local.bmuf import BlockMomentumOuter
from shoal.sync.local.diloco import NesterovOuter
from shoal.sync.local.easgd import ElasticAveragingOuter
from shoal.sync.local.outer import OuterOptimizer
from shoal.sync.local.rounds import LocalStepsSynchronizer
from shoal.sync.local.sma import ModelAveragingOuter
from shoal.sync.local.streaming import StreamingRoundsSynchronizer


def build_local(pace: LocalTerm, exchange: GradientExchange) -> LocalStepsSynchronizer:
    outer = build_outer(pace)
    if pace.streams and pace.steps != "auto":
        return StreamingRoundsSynchronizer(exchange, outer, pace.steps, overlap=pace.overlap, fragments=pace.fragments)
    reset, average = pace.state == "reset", pace.state == "average"
    if pace.steps == "auto":
        return AdaptiveRoundsSynchronizer(exchange, outer, reset, average)
    made = LocalStepsSynchronizer(exchange, outer, pace.steps, reset, average)
    made.leased, made.ends_with_fastest = pace.samples == "leased", pace.end == "fastest"
    return made


def build_outer(pace: LocalTerm) -> OuterOptimizer:
    """What a round makes of the mean change; numbers that the plan leaves open are those of the papers."""
    if pace.outer == "diloco":
        return NesterovOuter(0.7 if pace.rate is None else pace.rate, 0.9 if pace.momentum is None else pace.momentum)
    if pace.outer == "bmuf":
        return BlockMomentumOuter(1.0 if pace.rate is None else pace.rate, pace.momentum)
    if pace.outer == "easgd":
        return ElasticAveragingOuter(pace.alpha)
    if pace.outer == "sma":
        return ModelAveragingOuter(pace.alpha, 0.9 if pace.momentum is None else pace.momentum)
    return AverageOuter()
