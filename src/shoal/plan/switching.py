"""Which plan a running job may be switched to: what cannot be built in the middle of a run is refused before.

A switch is made where all replicas are equal: after a step, or at the end of a round, in which the samples so far are
counted. What is left of a pass is then dealt as the new plan says. The model itself stays what it is, so terms that
change it (few bits for weights) must be the same in both.
"""

from shoal.core.errors import UsageError
from shoal.membership.view import LONGEST_PLAN
from shoal.plan.plan import Plan
from shoal.plan.precision import PrecisionTerm
from shoal.plan.rules import check
from shoal.plan.switchable import why_unswitchable
from shoal.plan.terms import AllReduceTerm, DatagramsTerm, EveryTerm, MixTerm, SharedTerm, StaleTerm


def check_switch(before: Plan, after: Plan, workers: int, servers_stay: str = "") -> list[str]:
    """Return the warnings of all rules for `after`; raise UsageError where a run of `before` cannot go on by it.

    `servers_stay`: why this run's servers can neither be started nor ended while it trains; empty if they can.
    """
    for plan in (before, after):
        if why := why_unswitchable(plan):
            raise UsageError(f"no run can be switched from or to '{plan}': {why}; start a run with --plan '{after}'")
    if servers_stay and (before.servers or after.servers):
        raise UsageError(
            f"a switch from '{before}' to '{after}' starts or ends servers, and this run cannot: {servers_stay}; "
            f"stop it, then shoal run --resume --plan '{after}'"
        )
    # These terms change the model itself, which stays what it is.
    kept, wanted = _precision(before), _precision(after)
    if kept != wanted:
        terms = ", ".join(map(str, kept)) or "none"
        raise UsageError(
            f"'{after}' changes how the model is kept ({', '.join(map(str, wanted)) or 'no term'}), and that cannot be "
            f"switched while a run goes on; terms of precision in this run: {terms}"
        )
    # The text is a field of the view, which every member decodes with this limit.
    text = str(after)
    if len(text) > LONGEST_PLAN or not (text.isascii() and text.isprintable()):
        raise UsageError(f"a plan of {len(text)} characters; give at most {LONGEST_PLAN} of ASCII, or a named plan")
    return check(after, workers)


def keeps_own_optimizers(plan: Plan) -> bool:
    """Return whether each worker makes steps of its own, so that the state of its optimizers is its own too."""
    if isinstance(plan.exchange, AllReduceTerm) and isinstance(plan.pace, StaleTerm):  # late, but the same on all
        return False
    return isinstance(plan.exchange, SharedTerm | MixTerm | DatagramsTerm) or not isinstance(plan.pace, EveryTerm)


def _precision(plan: Plan) -> list[PrecisionTerm]:
    return sorted((term for term in plan.wire if isinstance(term, PrecisionTerm)), key=str)
