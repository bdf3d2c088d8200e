"""Which plan a running job may be switched to: what cannot be built in the middle of a run is refused before.

Plans of all-reduce and of servers may follow each other, where all replicas are equal at the end of a step or a round.
The model itself stays what it is, so terms that change it (few bits for weights) must be the same in both. Rounds that
travel while others train, or whose samples are leased, are begun with a run: how a pass deals its samples is settled
when it begins.
"""

from shoal.core.errors import UsageError
from shoal.membership.view import LONGEST_PLAN
from shoal.plan.plan import Plan
from shoal.plan.precision import PrecisionTerm
from shoal.plan.rules import check
from shoal.plan.switchable import is_switchable
from shoal.plan.terms import AsyncTerm, EveryTerm, ServerTerm, StaleTerm


def check_switch(before: Plan, after: Plan, workers: int, servers_stay: str = "") -> list[str]:
    """Return the warnings of all rules for `after`; raise UsageError where a run of `before` cannot go on by it.

    `servers_stay`: why this run's servers can neither be started nor ended while it trains; empty if they can.
    """
    for plan in (before, after):
        if not all(map(is_switchable, plan.plans)) or (plan.parts and plan.servers):
            raise UsageError(
                f"'{plan}' is neither an all-reduce nor servers of the whole model, with every(1), local(…) without "
                "overlap, fragments and leased samples, or on servers stale(…) or async without leased samples and "
                "speculate, and only such plans can be switched from or to while a run goes on; start a run with "
                f"--plan '{after}'"
            )
    if servers_stay and (before.servers or after.servers):
        raise UsageError(
            f"a switch from '{before}' to '{after}' starts or ends servers, and this run cannot: {servers_stay}; "
            f"stop it, then shoal run --resume --plan '{after}'"
        )
    kept, wanted = _precision(before), _precision(after)
    if kept != wanted:
        terms = ", ".join(map(str, kept)) or "none"
        raise UsageError(
            f"'{after}' changes how the model is kept ({', '.join(map(str, wanted)) or 'no term'}), and that cannot be "
            f"switched while a run goes on; terms of precision in this run: {terms}"
        )
    text = str(after)
    if len(text) > LONGEST_PLAN or not (text.isascii() and text.isprintable()):
        raise UsageError(f"a plan of {len(text)} characters; give at most {LONGEST_PLAN} of ASCII, or a named plan")
    return check(after, workers)


def keeps_own_optimizers(plan: Plan) -> bool:
    """Return whether each worker makes steps of its own, so that the state of its optimizers is its own too."""
    return not isinstance(plan.pace, EveryTerm)


def steps_on_servers(plan: Plan) -> bool:
    """Return whether workers push the changes of every step to servers."""
    return isinstance(plan.exchange, ServerTerm) and isinstance(plan.pace, StaleTerm | AsyncTerm)


def _precision(plan: Plan) -> list[PrecisionTerm]:
    return sorted((term for term in plan.wire if isinstance(term, PrecisionTerm)), key=str)
