"""The common part of filters: the elements of what has gathered that a rule chooses travel, the others add up.

Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014: filters of the user's own make
what goes to servers sparse. A member is one method, `choose`; a payload is one of `nonzero`. A filter that sets
`compares` is given the values that the changes are of, where changes of parameters travel: between a worker and its
servers.
"""

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from shoal.wire.codecs.nonzero import NonzeroCodec
from shoal.wire.encode_context import EncodeContext
from shoal.wire.layout import FlatLayout


@dataclass(frozen=True)
class FilterCodec(NonzeroCodec):
    """Base of filters, which need error feedback: without, what they hold back is lost."""

    default_feedback = True
    unbiased = False

    @abstractmethod
    def choose(self, changes: Tensor, values: Tensor | None, layout: FlatLayout) -> Tensor:
        """Return which elements of `changes` travel, as booleans. `values`: what they change; None where it is not
        known. Neither may be written to."""

    def encode_whole(self, whole: Tensor, layout: FlatLayout, context: EncodeContext, out: Tensor, keep: bool) -> int:
        waits = ~self.choose(whole, context.reference, layout)
        # What waits becomes zero and so does not travel. A copy, because `whole` still holds it for the residual.
        length = super().encode_whole(whole.masked_fill(waits, 0.0), layout, context, out, keep=False)
        if keep:
            whole.mul_(waits)
        return length
