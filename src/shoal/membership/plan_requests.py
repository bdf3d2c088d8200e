"""Which plan the coordinator switches to next. Workers and the user ask for one, several times and in any order.

A request has a number, one above the plan it follows. All workers run one script, so the same number from several of
them is one request: the first counts, and late ones change nothing. The log does not hold requests, because they are
repeated until a view has the plan (`MembershipView.plan`); the log holds views.
"""

from shoal.membership.view import MembershipView

MOST_REQUESTS = 1000
"""Requests further ahead of the current plan than this are ignored: no script switches so often in one step."""

WantedPlan = tuple[str, int]
"""A plan, and its number."""


class PlanRequests:
    """Requests that no view has fulfilled. `wanted`: the plan to switch to, if there is one."""

    def __init__(self) -> None:
        self.wanted: WantedPlan | None = None

    def hear(self, plan: str, number: int, view: MembershipView) -> None:
        """Take in the request of a worker's script."""
        if self._newest(view) < number <= view.switches + MOST_REQUESTS:
            self.wanted = (plan, number)

    def ask(self, plan: str, view: MembershipView) -> None:
        """Take in the user's request, which replaces any other."""
        if plan != (self.wanted[0] if self.wanted is not None else view.plan):
            self.wanted = (plan, self._newest(view) + 1)

    def made(self, view: MembershipView) -> None:
        """Drop the request that this view fulfils."""
        if self.wanted is not None and self.wanted[1] <= view.switches:
            self.wanted = None

    def _newest(self, view: MembershipView) -> int:
        return max(view.switches, self.wanted[1] if self.wanted is not None else 0)
