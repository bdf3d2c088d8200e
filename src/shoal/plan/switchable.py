"""Whether a plan may follow another in the middle of a run, or be followed: its replicas become equal now and then, and
what a pass deals does not depend on it."""

from shoal.plan.local import LocalTerm
from shoal.plan.plan import Plan
from shoal.plan.terms import AllReduceTerm, AsyncTerm, EveryTerm, ServerTerm, StaleTerm


def is_switchable(plan: Plan) -> bool:
    """Of a plan without parts, or one of its parts."""
    pace, served = plan.pace, isinstance(plan.exchange, ServerTerm)
    if not served and not isinstance(plan.exchange, AllReduceTerm):
        return False
    if isinstance(pace, LocalTerm):
        return not pace.streams and pace.samples == "static"
    if isinstance(pace, StaleTerm | AsyncTerm):
        return served and pace.samples == "static" and not (isinstance(pace, AsyncTerm) and pace.speculate)
    return pace == EveryTerm()
