"""The term of the wire axis that says what leaves first. It stands beside the codecs, at most once in a plan."""

import re
from typing import ClassVar, Literal

from shoal.core.errors import UsageError
from shoal.plan.term import CodecTerm, PlanTerm

UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9}
LEAST, MOST = 4 * 10**3, 16 * 10**9
_SIZE = re.compile(r"(\d{1,11})(b|kb|mb|gb)", re.ASCII)


class OrderTerm(CodecTerm, frozen=True, tag="order"):
    """Which gradients leave first: ready, as the backward pass gives them; needed, those of the layers the next
    forward pass needs first, which then waits layer by layer; largest, those of the largest magnitude, as many as
    `budget` bytes a step hold, and the rest later; auto, ready or needed, whichever some steps of both show as faster.

    Costs: ready nothing; needed and auto a round trip at each step; largest a copy of the gradients, and nothing
    leaves before the backward pass has ended.
    Cites: Hashemi et al. 2019, "TicTac"; Jayarajan et al. 2019, "Priority-based Parameter Propagation"; Wei et al.
    2015, "Managed Communication and Consistency for Fast Data-Parallel Iterative Analytics" (Bösen).
    Avoid: needed and auto where a run must survive lost workers, and with scripts that look at gradients before each
    step; largest where the network is fast enough for all.
    """

    name: ClassVar[str] = "order"

    by: Literal["ready", "needed", "largest", "auto"] = "ready"
    budget: str = ""
    """Of `largest`: bytes a worker sends a step, such as 500kb or 1mb."""

    def __post_init__(self) -> None:
        if self.by == "largest":
            self.limit  # noqa: B018  (raises for a text that is no size)
        elif self.budget:
            raise UsageError(f"{self}: only 'largest' has a budget; write order({self.by})")

    @property
    def limit(self) -> int:
        """Return the budget in bytes; raise UsageError if it is no size."""
        found = _SIZE.fullmatch(self.budget.lower())
        size = int(found[1]) * UNITS[found[2]] if found else 0
        if not LEAST <= size <= MOST:
            raise UsageError(
                f"{self}: budget must be from 4kb to 16gb a step (units: {', '.join(UNITS)}); "
                "write order(largest, budget=1mb)"
            )
        return size

    def __str__(self) -> str:
        return f"order(by={self.by}, budget={self.budget})" if self.budget else f"order({self.by})"

    @classmethod
    def usage(cls) -> str:
        return "order(ready)"


ORDERS: dict[str, type[PlanTerm]] = {"order": OrderTerm}
