"""Which plan a running job may be switched to: what cannot be built in the middle of a run is refused before.

Any two synchronous plans may follow each other. The model itself stays what it is, so terms that change it (few bits
for weights) must be the same in both.
"""

from shoal.core.errors import UsageError
from shoal.membership.view import LONGEST_PLAN
from shoal.plan.plan import Plan
from shoal.plan.precision import PrecisionTerm
from shoal.plan.rules import check
from shoal.plan.terms import AllReduceTerm, EveryTerm


def check_switch(before: Plan, after: Plan, workers: int) -> list[str]:
    """Return the warnings of all rules for `after`; raise UsageError where a run of `before` cannot go on by it."""
    for plan in (before, after):
        if not isinstance(plan.exchange, AllReduceTerm) or plan.pace != EveryTerm():
            raise UsageError(
                f"'{plan}' is not a synchronous all-reduce at every step, and only such plans can be switched from or "
                f"to while a run goes on; start a run with --plan '{after}'"
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


def _precision(plan: Plan) -> list[PrecisionTerm]:
    return sorted((term for term in plan.wire if isinstance(term, PrecisionTerm)), key=str)
