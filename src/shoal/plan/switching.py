"""Which plan a running job may be switched to: what cannot be built in the middle of a run is refused before.

Synchronous plans and plans of local rounds may follow each other. The model itself stays what it is, so terms that
change it (few bits for weights) must be the same in both. Rounds that travel while others train, or whose samples are
leased, are begun with a run: how a pass deals its samples is settled when it begins.
"""

from shoal.core.errors import UsageError
from shoal.membership.view import LONGEST_PLAN
from shoal.plan.local import LocalTerm
from shoal.plan.plan import Plan
from shoal.plan.precision import PrecisionTerm
from shoal.plan.rules import check
from shoal.plan.terms import AllReduceTerm, EveryTerm


def check_switch(before: Plan, after: Plan, workers: int) -> list[str]:
    """Return the warnings of all rules for `after`; raise UsageError where a run of `before` cannot go on by it."""
    for plan in (before, after):
        if any(not isinstance(each.exchange, AllReduceTerm) or not _is_switchable(each) for each in plan.plans):
            raise UsageError(
                f"'{plan}' is neither an all-reduce with every(1) nor one with local(…) without overlap, fragments and "
                "leased samples, and only such plans can be switched from or to while a run goes on; start a run with "
                f"--plan '{after}'"
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


def _is_switchable(plan: Plan) -> bool:
    pace = plan.pace
    if isinstance(pace, LocalTerm):
        return not pace.streams and pace.samples == "static"
    return pace == EveryTerm()


def _precision(plan: Plan) -> list[PrecisionTerm]:
    return sorted((term for term in plan.wire if isinstance(term, PrecisionTerm)), key=str)
