"""Updates are added: workers push changes that their own optimizers made.

Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS 2013: additive
updates commute, so a shard may apply them in any order. Any optimizer works, because it runs on the worker. Do not use
it where workers keep adaptive state (Adam) and see few samples each: every worker then has poor estimates of its own;
a rule at the server sees all gradients.
"""

from shoal.sync.server.rules.base import FloatArray, ServerRule


class AddRule(ServerRule):
    """values += update: exact where both are integers below 2^24."""

    takes_deltas = True
    zero_changes_nothing = True

    def apply(self, values: FloatArray, slots: list[FloatArray], update: FloatArray, count: int) -> None:
        values += update
