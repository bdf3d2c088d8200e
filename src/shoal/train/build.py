"""From a plan's description to the exchange that runs it: HOW replicas agree, and WHAT travels."""

from collections.abc import Callable, Mapping, Sequence

import msgspec
from torch import nn
from torch.optim import Optimizer

from shoal.groups.base import WorkerGroup
from shoal.plan.compose import compose
from shoal.plan.part_rules import is_served
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
from shoal.train.factors import FactorExchange, LinearFactors, linear_layers
from shoal.train.members import JoinedMembers
from shoal.train.servers import push_codec
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
    members: JoinedMembers | None = None,
    warn: Callable[[str], None] = lambda text: None,
) -> GradientExchange:
    """HOW, and WHAT travels: nothing at all for a world of one, whatever the plan says.

    `optimizers`: what the mean is for, where the run chooses a codec itself. `observer`: that of the exchange before,
    after a switch of the plan. `members`: whose parameters they are, where parts of the model have their own plans or
    factors travel. `warn` is told what happens otherwise than the plan says.
    """
    members = members or JoinedMembers()
    chosen = match_parts(plan.patterns, members.names) if plan.parts else []  # refused for one worker as for several
    if (group.size == 1 and not group.session.elastic) or isinstance(plan.exchange, AloneTerm):
        return NoExchange()
    if isinstance(plan.exchange, MixTerm):
        return PairExchange(group, observer)
    observer, found = observer or ExchangeObserver(), list[tuple[GradientExchange, set[str]]]()
    for each, names in _names_by_plan(plan, members.names, chosen).items():
        by = each.exchange.algorithm if plan.parts and isinstance(each.exchange, AllReduceTerm) else engines.by
        way = (group, engines.with_algorithm(by), seed)
        factored = _factored(each, members, names)
        found.append((_build_one(_without_factors(each), *way, optimizers, observer), names - set(factored)))
        if factored:
            found.append((_build_factors(each, factored, *way, observer, warn), set(factored)))
        elif each.factors is not None:
            warn(f"{each.factors}: no linear layer's factors are shorter than its gradient; all gradients are summed")
    if len(found) == 1:
        return found[0][0]
    places = {name: number for number, (_, names) in enumerate(found) for name in names}
    return PartedExchange([exchange for exchange, _ in found], places.__getitem__, str(plan))


def _names_by_plan(plan: Plan, names: Sequence[str], chosen: Sequence[int]) -> dict[Plan, set[str]]:
    """Parts that have the same plan are one; those on servers are not exchanged here."""
    if not plan.parts:
        return {plan: set(names)}
    found: dict[Plan, set[str]] = {each: set() for each in plan.plans}
    for name, part in zip(names, chosen, strict=True):
        found[plan.plans[part]].add(name)
    return {each: mine for each, mine in found.items() if not is_served(each)}


def _factored(plan: Plan, members: JoinedMembers, names: set[str]) -> dict[str, list[nn.Linear]]:
    """The linear layers of each weight among `names` that travels as factors: the same on all workers."""
    if plan.factors is None:
        return {}
    parameters = dict(zip(members.names, members.parameters, strict=True))
    layers = linear_layers(members.models, {id(parameter): name for name, parameter in parameters.items()})
    return {name: layers[name] for name in layers if name in names and plan.factors.is_worth_it(parameters[name].shape)}


def _without_factors(plan: Plan) -> Plan:
    if plan.factors is None:
        return plan
    return msgspec.structs.replace(plan, wire=tuple(term for term in plan.wire if term is not plan.factors))


def _build_factors(
    plan: Plan,
    layers: Mapping[str, list[nn.Linear]],
    group: WorkerGroup,
    engines: EngineChooser,
    seed: int,
    observer: ExchangeObserver,
    warn: Callable[[str], None],
) -> GradientExchange:
    assert plan.factors is not None
    return FactorExchange(
        AllReduceExchange(group, engines.of, observer),
        LinearFactors(layers, plan.factors.batch, warn),
        lambda codec, layouts: build_aggregator(codec, layouts, group, engines, seed, "gather"),
        str(plan.factors),
    )


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
    if codec is None or push_codec(plan, group.size) is not None:  # a codec of pushes: what all meet for goes as it is
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
