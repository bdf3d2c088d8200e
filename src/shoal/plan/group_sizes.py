"""The sizes of groups of workers and servers that stand for a plan, as SINGA's cluster configuration has them.

    [groups]                   worker groups   server groups   servers apart   plan
    worker_groups = 1                1               1              yes        server(shards=s), every(1)   Sandblaster
    workers_per_group = 4            1               1              no         allreduce, every(1)          AllReduce
    server_groups = 1              n > 1             1              yes        server(shards=s), async      Downpour
    servers_per_group = 2          n > 1             n              no         shared, every(1)             Hogwild
    separate = true

Workers of one group are synchronous, groups do not wait for each other. Ooi et al., "SINGA: A Distributed Deep Learning
Platform", ACM Multimedia 2015; Wang et al., "SINGA: Putting Deep Learning in the Hands of Multimedia Users", 2015. A
group that steps by itself is a single worker here. Do not use it for new plans: their text says more.
"""

from typing import Annotated

import msgspec

from shoal.core.errors import UsageError
from shoal.plan.plan import Plan
from shoal.plan.server import MOST_SHARDS, ServerTerm

MOST_WORKERS = 1024

Workers = Annotated[int, msgspec.Meta(ge=1, le=MOST_WORKERS)]


class GroupSizes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a whole cluster."""

    worker_groups: Workers = 1
    workers_per_group: Workers = 1
    server_groups: Workers = 1
    servers_per_group: Annotated[int, msgspec.Meta(ge=1, le=MOST_SHARDS)] = 1
    separate: bool = True
    """Whether servers are processes of their own; else the workers hold the values."""

    @property
    def workers(self) -> int:
        return self.worker_groups * self.workers_per_group


def read_groups(table: object) -> GroupSizes:
    """Return what the table `groups` of a plan file says."""
    try:
        return msgspec.convert(table, GroupSizes)
    except msgspec.ValidationError as error:
        known = ", ".join(GroupSizes.__struct_fields__)
        raise UsageError(f"groups: {error}; its keys are {known}") from None


def write_groups(sizes: GroupSizes) -> str:
    """Return the sizes as the text of a plan file."""
    lines = (f"{name} = {msgspec.json.encode(value).decode()}" for name, value in msgspec.to_builtins(sizes).items())
    return "\n".join(["[groups]", *lines]) + "\n"


def plan_of(sizes: GroupSizes) -> Plan:
    """Return the plan that groups of these sizes stand for."""
    asynchronous = sizes.worker_groups > 1
    # A group that steps by itself is a single worker here (see the top).
    if asynchronous and sizes.workers_per_group > 1:
        raise UsageError(
            f"groups: {sizes.worker_groups} groups of {sizes.workers_per_group} workers; groups that do not wait for "
            f"each other have one worker each here: write worker_groups = {sizes.workers}, workers_per_group = 1"
        )
    if sizes.server_groups != (sizes.worker_groups if asynchronous and not sizes.separate else 1):
        raise UsageError(
            f"groups: {sizes.server_groups} groups of servers for {sizes.worker_groups} of workers; write "
            "server_groups = 1, or as many as worker_groups with separate = false (Hogwild)"
        )
    if sizes.separate:
        server = ServerTerm(shards=sizes.servers_per_group)
        return Plan.parse(f"{server}, {'async' if asynchronous else 'every(1)'}")
    return Plan.parse("shared" if asynchronous else "allreduce, every(1)")


def groups_of(plan: Plan, workers: int) -> GroupSizes:
    """Return the sizes of groups that stand for `plan` with so many workers; UsageError if there are none."""
    # Plans without servers still have a size of that group: 1, the default.
    servers = plan.exchange.servers if isinstance(plan.exchange, ServerTerm) else 1
    together = GroupSizes(workers_per_group=workers, servers_per_group=servers)
    apart = GroupSizes(worker_groups=workers, servers_per_group=servers)
    shapes = [
        *(msgspec.structs.replace(shape, separate=True) for shape in (together, apart)),
        msgspec.structs.replace(together, separate=False),
        msgspec.structs.replace(apart, separate=False, server_groups=workers),
    ]
    # Found by trying: `plan_of` alone says what sizes mean.
    for sizes in shapes:
        if plan_of(sizes) == plan:
            return sizes
    raise UsageError(f"'{plan}' has no sizes of groups; those of Sandblaster, AllReduce, Downpour and Hogwild have")
