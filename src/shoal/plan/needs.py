"""What a plan needs of what a script has joined: named here, found by a worker (`train/plan_fitness.py`) and recorded.

So a switch to a plan that could not train this model is refused by `run.switch`, `shoal switch` and the page alike,
before any worker hears of it.
"""

from collections.abc import Mapping, Sequence

from shoal.core.errors import UsageError
from shoal.plan.local import LocalTerm
from shoal.plan.plan import Plan
from shoal.plan.terms import AsyncTerm, DatagramsTerm, DeadlineTerm, MixTerm, ServerTerm, SharedTerm, StaleTerm

STEPS, SERVED, SHARED, SENT, DELAYED = "steps", "served", "shared", "sent", "delayed"
"""That optimizers make steps; that servers keep the parameters, or the memory of a host; that values travel from there;
that one optimizer makes late steps."""


def find_needs(plan: Plan) -> list[str]:
    """Return what must fit among the things of each `join`."""
    served = isinstance(plan.exchange, ServerTerm) and isinstance(plan.pace, StaleTerm | AsyncTerm | DeadlineTerm)
    # With all-reduce stale(k) makes each step with the mean of k steps before.
    delayed = isinstance(plan.pace, StaleTerm) and not served
    shared = isinstance(plan.exchange, SharedTerm)
    sent = isinstance(plan.exchange, MixTerm | DatagramsTerm)
    # These exchange parameters, which only the step of an optimizer changes.
    steps = shared or sent or isinstance(plan.pace, LocalTerm)
    found = {STEPS: steps, SERVED: served, SHARED: shared, SENT: sent, DELAYED: delayed}
    return [name for name, needed in found.items() if needed]


def is_leased(plan: Plan) -> bool:
    return getattr(plan.pace, "samples", "static") == "leased"


def needs_one_join(plan: Plan) -> bool:
    """Whether only one operation may be under way, or a late push may be late for one join alone."""
    streams = isinstance(plan.pace, LocalTerm) and plan.pace.streams
    return streams or "delayed" in find_needs(plan) or isinstance(plan.pace, DeadlineTerm)


def check_joined(plan: Plan, misfits: Sequence[Mapping[str, str]], loaders: Sequence[str], tensors: int) -> None:
    """Raise UsageError if a run cannot train by this plan what its script has joined.

    `misfits`: of each join that has parameters, need -> why it does not fit. `loaders`: why samples of each joined
    loader cannot be leased, empty if they can. `tensors`: parameters of the first join.
    """
    for need in find_needs(plan):
        for why in (each[need] for each in misfits if need in each):
            raise UsageError(f"'{plan}': {why}")
    if needs_one_join(plan) and len(misfits) > 1:
        raise UsageError(
            f"'{plan}' is for one join, and the script has made {len(misfits)}; give all models and optimizers to one "
            "join(), or choose a plan that waits for every exchange"
        )
    if isinstance(plan.pace, LocalTerm) and misfits and plan.pace.fragments > tensors:
        raise UsageError(f"'{plan}': the model has {tensors} parameter tensors; write fragments={tensors} or fewer")
    if is_leased(plan) and not loaders:
        raise UsageError(
            f"'{plan}' leases samples, and no loader is joined; give one to join(), or drop samples=leased"
        )
    for why in filter(None, loaders if is_leased(plan) else ()):
        raise UsageError(f"'{plan}': {why}")
