"""The servers of a plan, from the launcher's side and from a worker's."""

from functools import lru_cache, partial
from typing import TYPE_CHECKING

import msgspec

from shoal.core.errors import UsageError
from shoal.groups.base import WorkerGroup
from shoal.groups.links import LinkedGroup
from shoal.groups.shared_memory import SharedGroup
from shoal.launch.placement import SERVICES_STAY
from shoal.launch.service_folder import service_file
from shoal.launch.services import RunService
from shoal.plan.plan import Plan
from shoal.plan.terms import AsyncTerm, ServerTerm, StaleTerm
from shoal.sync.server.link_connection import LinkServerConnection
from shoal.sync.server.payloads import CodedPayloads, ShardPayloads
from shoal.sync.server.replicated_connection import ReplicatedServerConnection
from shoal.sync.server.replicated_link import ReplicatedLinkConnection
from shoal.sync.server.shared_connection import SharedServerConnection
from shoal.sync.server.sum_engine import ServerEngines

if TYPE_CHECKING:
    from shoal.wire.codec import GradientCodec


def make_services(text: str, workers: int, grows: bool, joinable: bool) -> tuple[RunService, ...]:
    """`plan_services` as a launcher asks for them: by the text of a plan. `grows`: one worker may be many."""
    return plan_services(Plan.parse(text), workers, alone=not (joinable or grows))


def plan_services(plan: Plan, workers: int, alone: bool = True) -> tuple[RunService, ...]:
    """Return the processes that a launcher starts beside `workers` workers; none for a single one to whom nobody will
    come (`alone`)."""
    term = plan.servers
    if term is None or (workers == 1 and alone):
        return ()
    from shoal.sync.server.process import serve_shards

    # from here and not from a worker: a server decodes only what its plan says
    serve = partial(serve_shards, codec=push_codec(plan, workers))
    return tuple(RunService(f"server {number}", serve, term.replicas) for number in range(term.servers))


# the launcher asks several times a second
@lru_cache(maxsize=8)
def count_tuned_servers(text: str) -> int:
    """Return how many servers a plan has whose number the launcher tunes; 0 if it tunes none."""
    exchange = Plan.parse(text).exchange
    return exchange.servers if isinstance(exchange, ServerTerm) and exchange.shards == "auto" else 0


def write_servers(text: str, servers: int) -> str:
    """Return such a plan with another number of servers."""
    plan = Plan.parse(text)
    assert isinstance(plan.exchange, ServerTerm)
    return str(msgspec.structs.replace(plan, exchange=msgspec.structs.replace(plan.exchange, now=servers)))


def push_codec(plan: Plan, workers: int) -> "GradientCodec | None":
    """Return what pushes to servers are written by; None where they travel as they are, or nothing is pushed."""
    pushes = isinstance(plan.exchange, ServerTerm) and isinstance(plan.pace, StaleTerm | AsyncTerm)
    if not pushes or not plan.codecs:
        return None
    from shoal.plan.compose import compose  # brings torch along

    return compose(plan.codecs, workers)


def build_payloads(plan: Plan, workers: int, seed: int, rank: int) -> ShardPayloads:
    """Return what a worker's pushes carry."""
    codec = push_codec(plan, workers)
    return ShardPayloads() if codec is None else CodedPayloads(codec, seed, rank)


def connect_servers(plan: Plan, group: WorkerGroup, folder: str, number: int = 0) -> ServerEngines | None:
    """Return this worker's connection to the servers of its run; None where the plan needs none.

    `folder`: of the servers of this host. `number`: how often the plan was switched before.
    """
    exchange = plan.servers
    if exchange is None or (group.size == 1 and not group.session.elastic):
        return None
    # keys of servers between hosts are handed out when the run begins, so a later plan has none
    if isinstance(group, LinkedGroup) and len(group.servers) == exchange.servers * exchange.replicas and not number:
        linked = LinkServerConnection if exchange.replicas == 1 else ReplicatedLinkConnection
        return ServerEngines(linked(group))
    if not folder or not isinstance(group, SharedGroup):
        raise UsageError(
            f"'{plan}' needs {exchange.servers} server processes, and nobody has started any: servers are started by "
            "shoal run; start it so, or write allreduce"
        )
    kind = SharedServerConnection if exchange.replicas == 1 else ReplicatedServerConnection
    addresses = [f"ipc://{service_file(folder, number, shard)}" for shard in range(exchange.servers)]
    return ServerEngines(kind(addresses, group.session.member, group.board, group.seconds))


def why_servers_stay(group: WorkerGroup) -> str:
    """Return why servers can neither be started nor ended while this worker's run trains; empty if they can."""
    return SERVICES_STAY if isinstance(group, LinkedGroup) else ""
