"""The values are the mean of what all members pushed last: gradients for the workers' own optimizers.

Dean et al., "Large Scale Distributed Deep Networks", NIPS 2012 (Sandblaster, the synchronous scheme): with one round
in every step it equals an all-reduce. Do not use it with stale clocks, where "the last of all" has no meaning.
"""

from shoal.sync.server.rules.base import FloatArray, ServerRule


class MeanRule(ServerRule):
    """values = update: the round has taken the mean already."""

    needs_rounds = True

    def apply(self, values: FloatArray, slots: list[FloatArray], update: FloatArray, count: int) -> None:
        values[:] = update
