"""From a plan's description to the synchronizer that runs it: WHEN replicas agree, and what leaves first."""

from shoal.core.errors import UsageError
from shoal.groups.shared_memory import SharedGroup
from shoal.plan.datagrams import DatagramsTerm
from shoal.plan.deadline import DeadlineTerm
from shoal.plan.local import LocalTerm
from shoal.plan.mix import MixTerm
from shoal.plan.plan import Plan
from shoal.plan.server import ServerTerm
from shoal.plan.shared import SharedTerm
from shoal.plan.stale import AsyncTerm, StaleTerm
from shoal.plan.terms import EveryTerm
from shoal.sync.engine.chooser import EngineChooser
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.exchange.none import NoExchange
from shoal.sync.independent import IndependentSynchronizer
from shoal.sync.local.delayed import DelayedAverageSynchronizer
from shoal.sync.local.rounds import LocalStepsSynchronizer
from shoal.sync.lockstep.auto_order import AutoOrderSynchronizer
from shoal.sync.lockstep.lockstep import LockstepSynchronizer
from shoal.sync.lockstep.needed import NeededOrderSynchronizer
from shoal.sync.mix.butterfly import ButterflyMixingSynchronizer
from shoal.sync.mix.pairs import PairExchange
from shoal.sync.server.sum_engine import ServerEngines
from shoal.sync.settings import SynchronizerSettings
from shoal.sync.shared.cluster_ring import ClusterRingSynchronizer
from shoal.sync.shared.host_copies import HostCopiesSynchronizer
from shoal.sync.shared.lock_free import LockFreeSynchronizer
from shoal.sync.synchronizer import Synchronizer
from shoal.train.local_synchronizers import build_local, build_outer
from shoal.train.members import JoinedMembers
from shoal.train.served_synchronizers import build_served
from shoal.train.servers import build_payloads
from shoal.transport.rate_limit import rate_limit_from_environment

OVERLAPPING: dict[str, type[LockstepSynchronizer]] = {"needed": NeededOrderSynchronizer, "auto": AutoOrderSynchronizer}
"""Orders under which steps overlap, where an engine works in the background and members stay."""


def build_synchronizer(
    plan: Plan, exchange: GradientExchange, engines: EngineChooser, members: JoinedMembers, seed: int = 0
) -> Synchronizer:
    """The null member where nothing is exchanged, whatever the plan says. `seed`: of codecs that draw numbers."""
    if isinstance(exchange, NoExchange) or (not _has_part(members) and _has_steps_of_its_own(plan)):
        return IndependentSynchronizer()
    if isinstance(plan.exchange, SharedTerm):
        return _build_shared(plan.exchange, plan.pace, exchange, engines)
    if isinstance(exchange, PairExchange) and isinstance(plan.exchange, MixTerm):
        return ButterflyMixingSynchronizer(exchange, plan.exchange.steps)
    if isinstance(plan.exchange, DatagramsTerm):
        return _build_datagrams(plan.exchange, exchange, engines)
    if isinstance(plan.pace, LocalTerm):
        pace = plan.pace
        return build_local(pace, exchange)
    if isinstance(plan.pace, StaleTerm) and not isinstance(plan.exchange, ServerTerm):
        return DelayedAverageSynchronizer(exchange, plan.pace.bound, sums=members.loss == "sum")
    if isinstance(plan.pace, StaleTerm | AsyncTerm | DeadlineTerm):
        assert isinstance(engines.servers, ServerEngines)  # a rule: these paces are for servers
        payloads = build_payloads(plan, engines.group.size, seed, engines.group.rank)
        levels = plan.exchange.levels if isinstance(plan.exchange, ServerTerm) else 1
        return build_served(plan.pace, exchange, engines.servers.connection, payloads, engines.group, levels)
    if isinstance(plan.pace, SynchronizerSettings):
        return _build_foreign(plan.pace, exchange)
    background = exchange.peers and all(engines.background(p.device.type) for p in members.parameters)
    overlapping = OVERLAPPING.get(plan.order.by)
    kind = overlapping if overlapping and background and not exchange.session.elastic else LockstepSynchronizer
    return kind(exchange)


def _has_part(members: JoinedMembers) -> bool:
    """Return False for a join of a loader or a scheduler alone, of which there is nothing to agree on."""
    return bool(members.models or members.optimizers)


def _has_steps_of_its_own(plan: Plan) -> bool:
    """Return whether replicas agree after steps, and not in every backward pass."""
    return isinstance(plan.exchange, SharedTerm | MixTerm | DatagramsTerm) or not isinstance(plan.pace, EveryTerm)


def _build_shared(
    term: SharedTerm, pace: object, exchange: GradientExchange, engines: EngineChooser
) -> LockFreeSynchronizer:
    """One copy for all, or one on each host; on one host averages of one copy would only round it."""
    group = engines.group
    if isinstance(pace, LocalTerm):
        assert pace.steps != "auto"  # a rule
        if isinstance(group, SharedGroup) and pace.outer == "average" and pace.samples == "static":
            return LockFreeSynchronizer(exchange, group, pace.steps)
        copies = HostCopiesSynchronizer(exchange, group, build_outer(pace), pace.steps)
        copies.leased, copies.ends_with_fastest = pace.samples == "leased", pace.end == "fastest"
        return copies
    if not isinstance(group, SharedGroup):
        raise UsageError(
            f"'{term}' keeps one copy of the parameters in the memory of one host, and this run's workers are on "
            "several; write shared, local(16) for a copy on each host, or allreduce"
        )
    if term.clusters > 1:
        return ClusterRingSynchronizer(exchange, group, term.steps, term.clusters, term.hold)
    return LockFreeSynchronizer(exchange, group, term.steps)


def _build_datagrams(term: DatagramsTerm, exchange: GradientExchange, engines: EngineChooser) -> LocalStepsSynchronizer:
    try:
        from shoal.sync.datagrams.rounds import DatagramRoundsSynchronizer
    except ModuleNotFoundError as error:
        if error.name != "cryptography":
            raise
        raise UsageError(
            f"'{term}' encrypts with the package cryptography, which is not installed; install it with: pip install "
            "'shoal[datagrams]'"
        ) from None
    limit = rate_limit_from_environment()  # between meetings links are idle, so datagrams may have all of it
    rate = min(term.bytes_a_second, limit.rate) if limit is not None else term.bytes_a_second
    return DatagramRoundsSynchronizer(exchange, engines.group, term.steps, rate)


def _build_foreign(pace: SynchronizerSettings, exchange: GradientExchange) -> Synchronizer:
    """Make the synchronizer of another package; refuse one whose samples the run could not account for."""
    made = pace.make_synchronizer(exchange)
    kind = LockstepSynchronizer if pace.lockstep else LocalStepsSynchronizer
    if not isinstance(made, kind):
        raise UsageError(
            f"'{pace}' makes a {type(made).__name__}, and its term says lockstep = {pace.lockstep}; "
            f"inherit from {kind.__name__}, or correct the term"
        )
    return made
