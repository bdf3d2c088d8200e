"""From a plan's description to the exchange that runs it: HOW replicas agree, and WHAT travels."""

from collections.abc import Mapping, Sequence

from torch.optim import Optimizer

from shoal.groups.base import WorkerGroup
from shoal.plan.compose import compose
from shoal.plan.parts import match_parts
from shoal.plan.plan import Plan
from shoal.plan.terms import AllReduceTerm, AloneTerm, MixTerm
from shoal.plan.wrappers import GuardTerm
from shoal.sync.aggregate.build import build_aggregator
from shoal.sync.aggregate.largest import LargestAggregator
from shoal.sync.engine.base import AllReduceEngine
from shoal.sync.engine.chooser import EngineChooser
from shoal.sync.exchange.allreduce import AllReduceExchange
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.exchange.compressed import CompressedExchange
from shoal.sync.exchange.none import NoExchange
from shoal.sync.exchange.parted import PartedExchange
from shoal.sync.guard import ConvergenceGuard
from shoal.sync.mix.pairs import PairExchange
from shoal.sync.observer import ExchangeObserver
from shoal.train.auto_exchange import build_auto_exchange
from shoal.wire.codec import GradientCodec

OVERLAPPING_ORDERS = ("needed", "auto")
"""Orders under which steps overlap, where they can."""


def build_exchange(
    plan: Plan,
    group: WorkerGroup,
    engines: EngineChooser,
    seed: int = 0,
    optimizers: Sequence[Optimizer] = (),
    observer: ExchangeObserver | None = None,
    names: Sequence[str] = (),
) -> GradientExchange:
    """HOW, and WHAT travels: nothing at all for a world of one, whatever the plan says.

    `optimizers`: what the mean is for, where the run chooses a codec itself. `observer`: that of the exchange before,
    after a switch of the plan. `names`: of the parameters, where parts of the model have plans of their own.
    """
    chosen = match_parts(plan.patterns, names) if plan.parts else []  # refused for one worker as for several
    if (group.size == 1 and not group.session.elastic) or isinstance(plan.exchange, AloneTerm):
        return NoExchange()
    if isinstance(plan.exchange, MixTerm):
        return PairExchange(group, observer)
    if not plan.parts:
        return _build_one(plan, group, engines, seed, optimizers, observer)
    return _build_parts(plan, dict(zip(names, chosen, strict=True)), group, engines, seed, observer)


def _build_parts(
    plan: Plan,
    chosen: Mapping[str, int],
    group: WorkerGroup,
    engines: EngineChooser,
    seed: int,
    observer: ExchangeObserver | None,
) -> GradientExchange:
    """An exchange for each plan, shared by parts that have the same; `chosen`: the part of each parameter."""
    plans = list(dict.fromkeys(plan.plans))
    observer = observer or ExchangeObserver()
    exchanges = [
        _build_one(each, group, engines.with_algorithm(each.exchange.algorithm), seed, (), observer)
        for each in plans
        if isinstance(each.exchange, AllReduceTerm)  # a rule
    ]
    if len(exchanges) == 1:
        return exchanges[0]
    places = {name: plans.index(plan.plans[part]) for name, part in chosen.items()}
    return PartedExchange(exchanges, places.__getitem__, str(plan))


def _build_one(
    plan: Plan,
    group: WorkerGroup,
    engines: EngineChooser,
    seed: int,
    optimizers: Sequence[Optimizer],
    observer: ExchangeObserver | None,
) -> GradientExchange:
    exchange = AllReduceExchange(group, engines.of, observer)
    if plan.order.by == "largest":
        return CompressedExchange(
            exchange,
            lambda layouts: LargestAggregator(plan.order.limit, engines.payloads(), group.rank, seed),
            str(plan.order),
        )
    if plan.chooses_codec:
        return build_auto_exchange(exchange, group, engines, seed, optimizers)
    codec = compose(plan.codecs, group.size)
    if codec is None:
        return exchange
    # what meets in two stages would wait for the second
    how = "gather" if plan.order.by in OVERLAPPING_ORDERS else plan.meeting
    guard = plan.guard
    return CompressedExchange(
        exchange,
        lambda layouts: build_aggregator(codec, layouts, group, engines, seed, how, guarded=guard is not None),
        ", ".join(str(term) for term in plan.codecs),
        _guard(guard, engines.of("cpu"), codec, group) if guard is not None else None,
    )


def _guard(term: GuardTerm, engine: AllReduceEngine, codec: GradientCodec, group: WorkerGroup) -> ConvergenceGuard:
    return ConvergenceGuard(term.budget, term.every, engine, codec.get_ratio(), lambda: group.session.view.generation)
