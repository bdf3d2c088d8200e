"""Which plan the coordinator switches to next. Workers and the user ask for one, several times and in any order.

A request has a number, one above the plan it follows. All workers run one script, so the same number from several of
them is one request: the first counts, and late ones change nothing. The log does not hold requests, because they are
repeated until a view has the plan (`MembershipView.plan`); the log holds views.

Where a launcher starts processes that a plan needs (`MembershipRules.prepares`), no view has a plan before they run:

    coordinator ── PreparePlan(plan, number, losses) ──▶ launcher      repeated until it is answered
    coordinator ◀── PlanPrepared (the same) ── launcher                its processes listen: a view may have the plan
    coordinator ◀── PlanUnprepared(number, losses) ── launcher         one of them has ended

After a loss the launcher starts others only when it is asked with that loss counted, so it knows by the view alone
whether members may have met the processes that ended.
"""

import msgspec

from shoal.membership.protocol import Count
from shoal.membership.view import Generation, MembershipView, PlanString

MOST_REQUESTS = 1000
"""Requests further ahead of the current plan than this are ignored: no script switches so often in one step."""

WantedPlan = tuple[str, int]
"""A plan, and its number."""


class PreparePlan(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Start the processes of this plan, unless they run."""

    plan: PlanString
    number: Generation
    losses: Count = 0
    """How often processes of this request have ended."""


class PlanPrepared(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """All that was asked for runs."""

    asked: PreparePlan


class PlanUnprepared(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """It runs no more, for so many times by now."""

    number: Generation
    losses: Count


class PlanRequests:
    """Requests that no view has fulfilled. `wanted`: the plan to switch to, if there is one."""

    def __init__(self, prepares: bool = False) -> None:
        """`prepares`: whether a launcher has to start something before a view may have a plan."""
        self._prepares = prepares
        self._wanted: WantedPlan | None = None
        self._is_prepared, self._losses = False, 0
        self._asked: float | None = None
        """When the launcher was asked last."""

    @property
    def wanted(self) -> WantedPlan | None:
        return self._wanted

    @property
    def ready(self) -> WantedPlan | None:
        """The plan that the next view may have."""
        return self._wanted if self._is_prepared or not self._prepares else None

    def hear(self, plan: str, number: int, view: MembershipView) -> None:
        """Take in the request of a worker's script."""
        if self._newest(view) < number <= view.switches + MOST_REQUESTS:
            self._want((plan, number))

    def ask(self, plan: str, view: MembershipView) -> None:
        """Take in the user's request, which replaces any other."""
        # Asking for the plan that is on its way, or there, is no request.
        if plan != (self._wanted[0] if self._wanted is not None else view.plan):
            self._want((plan, self._newest(view) + 1))

    def made(self, view: MembershipView) -> None:
        """Drop the request that this view fulfils."""
        if self._wanted is not None and self._wanted[1] <= view.switches:
            self._want(None)

    def drop(self) -> None:
        """Forget what was asked for."""
        self._want(None)

    def _want(self, wanted: WantedPlan | None) -> None:
        self._wanted, self._asked = wanted, None
        self._is_prepared, self._losses = False, 0

    def next_question(self, now: float, repeat: float) -> PreparePlan | None:
        """What the launcher is to be asked now; None if nothing, or if it was less than `repeat` seconds ago."""
        due = self._asked is None or now - self._asked >= repeat
        if not self._prepares or self._is_prepared or self._wanted is None or not due:
            return None
        self._asked = now
        plan, number = self._wanted
        return PreparePlan(plan=plan, number=number, losses=self._losses)

    def note_prepared(self, said: PlanPrepared) -> None:
        """Take in the launcher's answer; one to an earlier question changes nothing."""
        asked = said.asked
        self._is_prepared |= (asked.plan, asked.number) == self._wanted and asked.losses == self._losses

    def note_unprepared(self, said: PlanUnprepared) -> None:
        """Ask again, with this loss counted."""
        if self._wanted is not None and self._wanted[1] == said.number and said.losses > self._losses:
            self._is_prepared, self._losses, self._asked = False, said.losses, None

    def _newest(self, view: MembershipView) -> int:
        return max(view.switches, self._wanted[1] if self._wanted is not None else 0)
