"""Opens the part of a join that lies on servers: which tables and parameters, by the plan, and their first values.

A `ServedEmbedding` needs servers that the plan names; a parameter lies there if its part of the plan says so. Tables
are opened when everything else of the join is done, so what the servers begin with is what all workers agreed on.
"""

from collections.abc import Sequence

import torch
from torch import nn

from shoal.core.errors import UsageError
from shoal.groups.base import WorkerGroup
from shoal.plan.part_rules import is_served
from shoal.plan.parts import match_parts
from shoal.plan.plan import Plan
from shoal.plan.terms import AsyncTerm, StaleTerm
from shoal.sync.server.connection import ServerConnection
from shoal.sync.server.local_connection import LocalServerConnection
from shoal.sync.server.row_client import RowClient
from shoal.sync.server.served_rows import RowUser, ServedRowsSynchronizer
from shoal.train.joined import JoinedModels
from shoal.train.members import JoinedMembers
from shoal.train.served_parameters import ServedParameter


def find_served(plan: Plan, members: JoinedMembers) -> list[int]:
    """Return the indices of parameters that lie on servers. UsageError: they cannot."""
    _check_tables(plan, members)
    if plan.servers is None or not plan.parts:
        return []
    chosen = match_parts(plan.patterns, members.names)
    found = [index for index, part in enumerate(chosen) if is_served(plan.plans[part])]
    for index in found:
        if members.parameters[index].dtype != torch.float32:
            raise UsageError(
                f"parameter {members.names[index]!r} is of {members.parameters[index].dtype}, and servers keep "
                "float32; give it a part in lock-step"
            )
    return found


def _check_tables(plan: Plan, members: JoinedMembers) -> None:
    names = list(members.tables)
    if not names:
        return
    if not plan.parts:
        if plan.servers is None and plan == Plan():
            return  # a run of one worker needs no plan; others are refused when their tables are opened
        raise _without_servers(plan, names[0])
    for name, part in zip(names, match_parts(plan.patterns, names), strict=True):
        each = plan.plans[part]
        if not is_served(each):
            raise _without_servers(plan, name)
        if isinstance(each.pace, AsyncTerm) and each.pace.rule != "add":
            raise UsageError(
                f"'{each.pace}' for the table {name!r}: a ServedEmbedding has a rule and a rate of its own; write async"
            )


def _without_servers(plan: Plan, name: str) -> UsageError:
    pattern = name.rpartition(".")[0] or name
    return UsageError(
        f"table {name!r} lies on servers, and plan '{plan}' has none for it; write "
        f"'{pattern}.*: server, async; *: allreduce'"
    )


def open_served(joined: JoinedModels, plan: Plan, group: WorkerGroup, servers: ServerConnection | None) -> None:
    """Give what lies on servers its clients."""
    members = joined.members
    users: list[tuple[str, RowUser]] = []
    parameters = [_make(plan, members, index) for index in members.served] if servers is not None else []
    for name, table in members.tables.items():
        users.append((name, table))
    users += [(each.name, each) for each in parameters]
    if not users:
        return
    if servers is None:
        if group.size > 1 or group.session.elastic:
            raise _without_servers(plan, users[0][0])
        # one process alone keeps the tables itself
        servers = LocalServerConnection(group.session.member, group.board, group.seconds)
    for name, user in users:
        spec = user.describe() if isinstance(user, ServedParameter) else members.tables[name].describe(name)
        user.client = RowClient(spec, servers, group.session, _bound(plan, name))
        user.client.open()
    joined.serve(ServedRowsSynchronizer([user for _, user in users]))


def load_parameters(joined: JoinedModels, group: WorkerGroup) -> None:
    """Give the servers what all workers agreed on, before anybody trains. A collective call."""
    assert joined.served is not None
    for user in joined.served.users:
        # all workers hold the same values, so one of them gives them
        if isinstance(user, ServedParameter) and group.rank == 0:
            user.load_all()
    # no worker pulls before the servers have everything
    group.gather(b"")


def _make(plan: Plan, members: JoinedMembers, index: int) -> ServedParameter:
    name, parameter = members.names[index], members.parameters[index]
    pace = plan.plans[match_parts(plan.patterns, [name])[0]].pace
    rule = pace.rule if isinstance(pace, AsyncTerm) else "add"
    settings = {"rate": pace.rate} if isinstance(pace, AsyncTerm) and pace.rate is not None else {}
    layers: Sequence[nn.Module] = [
        module
        for model in members.models
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse and module.weight is parameter
    ]
    return ServedParameter(name, parameter, list(layers), rule, settings)


def _bound(plan: Plan, name: str) -> int | None:
    if not plan.parts:
        return None
    pace = plan.plans[match_parts(plan.patterns, [name])[0]].pace
    return pace.bound if isinstance(pace, StaleTerm) else None
