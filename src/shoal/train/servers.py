"""The servers of a plan, from the launcher's side and from a worker's."""

from functools import partial
from typing import TYPE_CHECKING

from shoal.core.errors import UsageError
from shoal.groups.links import LinkedGroup
from shoal.groups.shared_memory import SharedGroup
from shoal.launch.context import WorkerContext
from shoal.launch.services import RunService
from shoal.plan.plan import Plan
from shoal.plan.terms import AsyncTerm, StaleTerm
from shoal.sync.server.link_connection import LinkServerConnection
from shoal.sync.server.payloads import CodedPayloads, ShardPayloads
from shoal.sync.server.replicated_connection import ReplicatedServerConnection
from shoal.sync.server.socket_connection import SocketServerConnection
from shoal.sync.server.sum_engine import ServerEngines

if TYPE_CHECKING:
    from shoal.wire.codec import GradientCodec


def plan_services(plan: Plan, workers: int, alone: bool = True) -> tuple[RunService, ...]:
    """Return the processes that a launcher starts beside `workers` workers; none for a single one to whom nobody will
    come (`alone`)."""
    term = plan.servers
    if term is None or (workers == 1 and alone):
        return ()
    from shoal.sync.server.process import serve_shards

    # from here and not from a worker: a server decodes only what its plan says
    serve = partial(serve_shards, codec=push_codec(plan, workers))
    return tuple(RunService(f"server {number}", serve, term.replicas) for number in range(term.shards))


def push_codec(plan: Plan, workers: int) -> "GradientCodec | None":
    """Return what pushes to servers are written by; None where they travel as they are, or nothing is pushed."""
    if not isinstance(plan.pace, StaleTerm | AsyncTerm) or not plan.codecs:
        return None
    from shoal.plan.compose import compose  # brings torch along

    return compose(plan.codecs, workers)


def build_payloads(plan: Plan, workers: int, seed: int, rank: int) -> ShardPayloads:
    """Return what a worker's pushes carry."""
    codec = push_codec(plan, workers)
    return ShardPayloads() if codec is None else CodedPayloads(codec, seed, rank)


def connect_servers(plan: Plan, context: WorkerContext) -> ServerEngines | None:
    """Return this worker's connection to the servers of its run; None where the plan needs none."""
    group, exchange = context.group, plan.servers
    if exchange is None or (group.size == 1 and not group.session.elastic):
        return None
    if isinstance(group, LinkedGroup) and len(group.servers) == exchange.shards:
        return ServerEngines(LinkServerConnection(group))
    if len(context.servers) != exchange.shards or not isinstance(group, SharedGroup):
        raise UsageError(
            f"'{plan}' needs {exchange.shards} server processes and there are {len(context.servers)}: servers are "
            "started by shoal run; start it so, or write allreduce"
        )
    kind = SocketServerConnection if exchange.replicas == 1 else ReplicatedServerConnection
    return ServerEngines(kind(context.servers, group.session.member, group.board, group.seconds))
