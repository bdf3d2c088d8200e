"""Which shard a member asks for: one that waits for all within a bound, or one whose steps have a deadline."""

from shoal.sync.server.deadline_shard import DeadlineShard
from shoal.sync.server.messages import OpenRequest
from shoal.sync.server.rules.base import FloatArray
from shoal.sync.server.rules.table import make_rule
from shoal.sync.server.shard import ParameterShard


def make_shard(request: OpenRequest, values: FloatArray) -> ParameterShard:
    """UsageError: the request is for no shard there can be."""
    rule = make_rule(request.rule, **request.settings)
    if request.deadline is not None:
        return DeadlineShard(values, rule, request.members, request.deadline)
    return ParameterShard(values, rule, request.members, request.bound)
