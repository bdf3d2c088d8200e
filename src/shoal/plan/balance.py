"""The term that says how much of every batch each worker computes."""

import re
from typing import ClassVar

from shoal.core.errors import UsageError
from shoal.plan.term import Axis, PlanTerm

LARGEST = 64
"""The largest share over the smallest."""
_RATIO = re.compile(r"\d{1,4}(?::\d{1,4})+", re.ASCII)


class BalanceTerm(PlanTerm, frozen=True, tag="balance"):
    """How much of every batch each worker computes: even, all the same; auto, as much as its measured speed allows, so
    that all are done at the same time; a ratio such as 2:1:1, worker 0 twice as much as the others. The batch of all
    workers together and the result stay the same.

    Costs: nothing while workers are equally fast; a change of shares starts the processes of a DataLoader anew.
    Cites: Chen et al. 2020, "Semi-dynamic load balancing: efficient distributed learning in non-dedicated
    environments".
    Avoid: where memory, not speed, limits a worker's batch; and with BatchNorm and very small shares, whose statistics
    then come from few samples. Whole batches (a batch sampler, a list) are dealt one to each worker whatever it says.
    """

    axis: ClassVar[Axis] = "balance"
    name: ClassVar[str] = "balance"

    shares: str = "auto"
    """even, auto, or a ratio by worker."""

    def __post_init__(self) -> None:
        if self.shares in ("even", "auto"):
            return
        if not isinstance(self.shares, str) or not _RATIO.fullmatch(self.shares):
            raise UsageError(f"{self}: shares must be even, auto or a ratio by worker; write balance(2:1:1)")
        if not (min(self.ratio) > 0 and max(self.ratio) <= LARGEST * min(self.ratio)):
            raise UsageError(
                f"{self}: every worker's share must be above 0 and the largest at most {LARGEST} times the smallest"
            )

    @property
    def ratio(self) -> tuple[int, ...]:
        """By worker; empty for even and auto."""
        return tuple(map(int, self.shares.split(":"))) if ":" in self.shares else ()


EVEN = BalanceTerm("even")
