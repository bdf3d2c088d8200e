"""Who was introduced to whom: a newcomer may take over a member's state before it enters, while the others train.

    newcomer     Hello(waits) ──> coordinator ── Lend(newcomer) ──> the first member of the view
                              <── Borrow(that member) ──┘

What they then do is none of the coordinator's business: the newcomer says `Hello` without `waits` when it wants in.
"""

from dataclasses import dataclass, field

from shoal.cluster.membership.messages import Borrow, Lend, Order
from shoal.core.clock import now


@dataclass
class Introductions:
    """Of one worker: written by its agent's thread, read by its training thread."""

    waits: bool = False
    """Whether this worker is a newcomer that does not want in yet."""
    offer: Borrow | None = None
    """Who was asked last to lend this worker its state."""
    asked: dict[str, tuple[Lend, float]] = field(default_factory=dict)
    """Newcomers that would like to have the state of this one, and when that was said last."""

    def hear(self, order: Order) -> None:
        """What the coordinator says of it."""
        if isinstance(order, Borrow):
            self.offer = order
        elif isinstance(order, Lend):
            self.asked[order.member] = (order, now())
