"""Whether a plan may follow another in the middle of a run, or be followed: its replicas become equal now and then."""

from shoal.plan.plan import Plan
from shoal.plan.terms import AloneTerm, SharedTerm
from shoal.sync.settings import SynchronizerSettings


def is_switchable(plan: Plan) -> bool:
    return not why_unswitchable(plan)


def why_unswitchable(plan: Plan) -> str:
    """Return why no run can be switched to this plan or from it; empty if it can."""
    for each in plan.plans:
        if isinstance(each.exchange, AloneTerm):
            return "its workers train models of their own, which are equal after no step"
        if isinstance(each.exchange, SharedTerm):
            return "its workers share one copy of the parameters, which is not handed over to replicas of their own"
        if isinstance(each.pace, SynchronizerSettings):
            return f"{each.pace} is of another package, and what it keeps from step to step is not known here"
    if plan.parts and plan.servers:
        return "parts on servers are handed over when the script joins the model"
    return ""
