"""Which plan the coordinator switches to next, when workers and the user ask for one, several times and in any order.

A request has a number, one above the plan it is to follow. Workers run one script, so the same number from several of
them is one request: the first counts, and what is late changes nothing. Nothing of this is in the log: who asked asks
again until a view has the plan (`MembershipView.plan`), which is.
"""

from shoal.membership.view import MembershipView

MOST_REQUESTS = 1000
"""Switches that may be asked for ahead of the one that is made."""

WantedPlan = tuple[str, int]
"""A plan, and its number."""


class PlanRequests:
    """`wanted`: the plan to switch to, if there is one."""

    def __init__(self) -> None:
        self.wanted: WantedPlan | None = None

    def hear(self, plan: str, number: int, view: MembershipView) -> None:
        """A worker's script asks, while `view` stands."""
        if self._newest(view) < number <= view.switches + MOST_REQUESTS:
            self.wanted = (plan, number)

    def ask(self, plan: str, view: MembershipView) -> None:
        """The user asks: whatever was asked for before, this one counts."""
        if plan != (self.wanted[0] if self.wanted is not None else view.plan):
            self.wanted = (plan, self._newest(view) + 1)

    def made(self, view: MembershipView) -> None:
        """A view is installed."""
        if self.wanted is not None and self.wanted[1] <= view.switches:
            self.wanted = None

    def _newest(self, view: MembershipView) -> int:
        return max(view.switches, self.wanted[1] if self.wanted is not None else 0)
