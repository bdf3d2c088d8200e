"""Rules between the parts of a model: which plans may stand beside each other, and what must be the same in all.

All parts are exchanged in one operation of the members, so a step happens for all of them or for none.
"""

from collections.abc import Callable

from shoal.core.errors import UsageError
from shoal.plan.plan import Plan
from shoal.plan.precision import PrecisionTerm
from shoal.plan.terms import AllReduceTerm, EveryTerm
from shoal.plan.wrappers import WireTerm


def check_parts(plan: Plan) -> None:
    """Raise UsageError for parts whose plans cannot stand beside each other; nothing for a plan without parts."""
    for rule in PART_RULES if plan.parts else ():
        rule(plan)


def parts_are_in_lockstep(plan: Plan) -> None:
    for part in plan.parts:
        if not isinstance(part.plan.exchange, AllReduceTerm):
            raise UsageError(
                f"'{part.plan.exchange}' in part '{part.pattern}': all parts are exchanged together, by allreduce; "
                "write allreduce, or one plan for the whole model"
            )
        if part.plan.pace != EveryTerm():
            raise UsageError(
                f"'{part.plan.pace}' in part '{part.pattern}': samples are committed when all parts agree, so all "
                "agree at every step; write every(1), or one plan for the whole model"
            )


def parts_leave_in_one_order(plan: Plan) -> None:
    first = plan.parts[0]
    for part in plan.parts[1:]:
        overlapping = {first.plan.order.by, part.plan.order.by} & {"needed", "auto"}
        if overlapping and part.plan.order != first.plan.order:
            raise UsageError(
                f"'{first.plan.order}' in part '{first.pattern}' and '{part.plan.order}' in part '{part.pattern}': the "
                "next forward pass waits for all parts; write the same order in all"
            )


def parts_share_their_precision(plan: Plan) -> None:
    for part in plan.parts:
        for term in part.plan.wire:
            if isinstance(term, PrecisionTerm):
                raise UsageError(
                    f"'{term}' in part '{part.pattern}' says how the whole model is kept; write one plan for the model"
                )


def parts_choose_no_codec(plan: Plan) -> None:
    for part in plan.parts:
        for term in part.plan.wire:
            if isinstance(term, WireTerm):
                raise UsageError(
                    f"'{term}' in part '{part.pattern}' measures whole steps, so it chooses for the whole model; write "
                    "a codec: int8"
                )


PART_RULES: tuple[Callable[[Plan], None], ...] = (
    parts_are_in_lockstep,
    parts_leave_in_one_order,
    parts_share_their_precision,
    parts_choose_no_codec,
)
