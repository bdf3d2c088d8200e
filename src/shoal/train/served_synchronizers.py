"""From `stale(…)`, `async` and `deadline(…)` to the steps at parameter servers that run them."""

from dataclasses import replace

from shoal.groups.base import WorkerGroup
from shoal.plan.deadline import DeadlineTerm
from shoal.plan.stale import AsyncTerm, StaleTerm
from shoal.sync.exchange.base import GradientExchange
from shoal.sync.server.connection import ServerConnection
from shoal.sync.server.deadline_steps import DeadlineStepsSynchronizer
from shoal.sync.server.host_steps import HostStepsSynchronizer
from shoal.sync.server.messages import StepDeadline
from shoal.sync.server.payloads import ShardPayloads
from shoal.sync.server.prefetching_steps import PrefetchingStepsSynchronizer
from shoal.sync.server.server_pace import ServerPace
from shoal.sync.server.speculative_steps import SpeculativeStepsSynchronizer
from shoal.sync.server.synchronizer import ServerStepsSynchronizer


def build_served(
    pace: StaleTerm | AsyncTerm | DeadlineTerm,
    exchange: GradientExchange,
    servers: ServerConnection,
    payloads: ShardPayloads,
    group: WorkerGroup,
    levels: int = 1,
) -> ServerStepsSynchronizer:
    """`levels`: 2 where the workers of a host push together."""
    if isinstance(pace, DeadlineTerm):
        terms = StepDeadline(pace.seconds, pace.backups, pace.late == "add")
        return DeadlineStepsSynchronizer(exchange, servers, ServerPace(0, deadline=terms), pace.round, payloads)
    found = build_server_pace(pace)
    if levels > 1:
        found = replace(found, by_host=True)
        return HostStepsSynchronizer(exchange, servers, found, pace.round, payloads, group=group)
    served = choose_kind(found)(exchange, servers, found, pace.round, payloads)
    served.leased = pace.samples == "leased"
    return served


def choose_kind(pace: ServerPace) -> type[ServerStepsSynchronizer]:
    """Of a pace without a deadline."""
    if pace.prefetch:
        return PrefetchingStepsSynchronizer
    return SpeculativeStepsSynchronizer if pace.speculate else ServerStepsSynchronizer


def build_server_pace(pace: StaleTerm | AsyncTerm) -> ServerPace:
    """What the servers are told, and how often values are pulled."""
    if isinstance(pace, StaleTerm):
        adaptive, prefetch = pace.rates == "adaptive", pace.prefetch == "true"
        return ServerPace(pace.bound, eager=pace.eager == "true", adaptive=adaptive, prefetch=prefetch)
    settings = {} if pace.rate is None else {"rate": pace.rate}
    return ServerPace(None, pace.rule, settings, prefetch=pace.prefetch == "true", speculate=pace.speculate)
